#include "coordinator/service/job_steps.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <vector>

#include "coordinator/manifest.h"
#include "coordinator/rows.h"
#include "core/errors.h"
#include "core/npy.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

/// Documents looked at before the store is told: a restart looks at no more than these again.
constexpr std::int64_t kBatch = 200;

std::string tokenizer_choice(const StoredJob& job) {
    return job.spec.__isset.tokenizer ? job.spec.tokenizer : "auto";
}

std::string levels_of(const StoredJob& job) {
    return job.spec.__isset.levels ? job.spec.levels : "extend";
}

/// The losses of a completed document under their final name: the process may have ended before they got it.
void claim_losses(const OutputFolder& folder, const Row& row) {
    const std::string name = file_name_for_id(row.at("custom_id").get<std::string>());
    const auto expected = static_cast<std::uintmax_t>(NpyStream::kHeaderBytes) +
                          row.at("scored_tokens").get<std::uintmax_t>() * sizeof(float);
    std::error_code error;
    if (fs::file_size(folder.nll(name), error) == expected && !error) return;
    const std::uintmax_t part = fs::file_size(folder.nll_part(name), error);
    if (error || part != expected) {
        throw DataError(fmt::format("{}: the losses of a completed document are not there whole; expected {} bytes",
                                    folder.nll(name).string(), expected));
    }
    fs::rename(folder.nll_part(name), folder.nll(name), error);
    if (error)
        throw UnavailableError(fmt::format("{}: cannot rename: {}", folder.nll_part(name).string(), error.message()));
    sync_folder(folder.path() / "nll");
}

}  // namespace

bool JobSteps::check(const std::string& job_id) {
    try {
        return check_step(job_id);
    } catch (const ServiceFault& fault) {
        if (fault.service_code() == ServiceCode::CONFLICT) {
            const auto state = store_.stored_job(job_id).state;
            if (state != idl::JobState::VALIDATING) return false;  // cancelled meanwhile
        }
        if (fault.retryable() && fault.service_code() == ServiceCode::STORAGE_FULL) throw;
        store_.fail_job(job_id, fault.service_code(), fault.what());
    } catch (const UnavailableError&) {
        throw;
    } catch (const Error& error) {
        const auto code = error.code() == ExitCode::kBadInput   ? ServiceCode::CORRUPT_DATA
                          : error.code() == ExitCode::kInternal ? ServiceCode::INTERNAL
                                                                : ServiceCode::INVALID_ARGUMENT;
        store_.fail_job(job_id, code, folders_.for_client(job_id, error.what()));
    }
    return false;
}

bool JobSteps::check_step(const std::string& job_id) {
    const StoredJob job = store_.stored_job(job_id);
    if (job.state != idl::JobState::VALIDATING) return false;
    if (!job.listed) {
        const std::vector<DocumentRef> documents = folders_.list(job);
        if (documents.empty()) throw ServiceFault(ServiceCode::INVALID_ARGUMENT, "the inputs hold no document");
        if (std::ssize(documents) > max_documents_) {
            throw ServiceFault(ServiceCode::INVALID_ARGUMENT,
                               fmt::format("{} documents are more than the {} that one job may have; submit them as "
                                           "several jobs",
                                           documents.size(), max_documents_));
        }
        store_.add_documents(job_id, documents, most_active_of_client_);
        return true;
    }
    const std::vector<StoredDocument> documents = store_.unchecked_documents(job_id, kBatch);
    if (documents.empty()) {
        store_.start_job(job_id);
        return false;
    }
    const ModelFacts model = models_.known(job.model_path, job.model_hash);
    const std::shared_ptr<const Tokenizer> tokenizer = models_.tokenizer(tokenizer_choice(job), model);
    std::vector<Store::CheckedDocument> checked;
    for (const StoredDocument& document : documents) checked.push_back(look_at(job, document, model, *tokenizer));
    store_.record_checked(job_id, checked);
    return true;
}

Store::CheckedDocument JobSteps::look_at(const StoredJob& job, const StoredDocument& document, const ModelFacts& model,
                                         const Tokenizer& tokenizer) {
    Store::CheckedDocument checked;
    checked.id = document.id;
    try {
        if (!document.ref.error.empty()) throw DocumentFailure("INVALID_ARGUMENT", document.ref.error);
        try {
            const std::unique_ptr<TokenReader> reader = folders_.open(job, document.ref, model, tokenizer);
            checked.tokens = reader->size();
            checked.input_hash = document_hash(*reader);
        } catch (const DataError& error) {
            throw DocumentFailure("CORRUPT_DATA", folders_.for_client(job.id, error.what()));
        }
        if (levels_of(job) == "strict" && model.trained_tokens > 0 && checked.tokens > model.trained_tokens) {
            throw DocumentFailure(
                "DOCUMENT_TOO_LONG",
                fmt::format("{}: {} tokens, but the model's levels were trained for {}; --levels extend uses "
                            "the last level beyond",
                            document.ref.custom_id, checked.tokens, model.trained_tokens));
        }
    } catch (const DocumentFailure& failure) {
        checked.code = service_code_of(failure.code_name());
        checked.message = failure.what();
        checked.row = to_line(failed_row(folders_.for_client(job.id, document.ref), failure, checked.input_hash));
    }
    return checked;
}

void JobSteps::finish(const std::string& job_id) {
    const StoredJob job = store_.stored_job(job_id);
    const bool expired = job.target == idl::JobState::EXPIRED;
    const std::shared_ptr<OutputFolder> folder = folders_.output(job_id);
    // A retried job was complete once: until the manifest is there again it is not.
    remove_file(folder->manifest());
    std::vector<std::string> results;
    std::vector<std::string> errors;
    Manifest manifest;
    manifest.files = {"results.jsonl", "errors.jsonl"};
    store_.for_each_document(job_id, [&](const StoredDocument& document) {
        ++manifest.documents;
        if (document.state == idl::DocumentState::COMPLETED) {
            const Row row = Row::parse(document.row);
            claim_losses(*folder, row);
            results.push_back(document.row);
            manifest.files.push_back(row.at("nll_file").get<std::string>());
            return;
        }
        if (!document.row.empty()) {
            errors.push_back(document.row);
            return;
        }
        const DocumentFailure failure(expired ? "DEADLINE_EXCEEDED" : "CANCELLED",
                                      fmt::format("{}: {}", document.ref.custom_id,
                                                  expired ? "the job's time was over" : "the job was cancelled"));
        errors.push_back(to_line(failed_row(folders_.for_client(job_id, document.ref), failure, document.input_hash)));
    });
    write_lines(folder->results(), results);
    write_lines(folder->errors(), errors);

    const ModelFacts model = models_.known(job.model_path, job.model_hash);
    manifest.identity = {.model_hash = job.model_hash,
                         .tokenizer = models_.tokenizer(tokenizer_choice(job), model)->identity(),
                         .bos = job.spec.__isset.bos && job.spec.bos,
                         .device = job.device,
                         .dtype = job.dtype,
                         .levels = levels_of(job)};
    manifest.family = model.family;
    manifest.parameters = model.parameters;
    manifest.completed = std::ssize(results);
    manifest.failed = std::ssize(errors);
    write_manifest(folder->path(), folder->manifest(), manifest);
    folder->remove_work();
    folders_.forget_output(job_id);
    store_.finish_job(job_id, {"results.jsonl", "errors.jsonl", "manifest.json"});
}

}  // namespace fenwick
