#include "coordinator/service/job_folders.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "core/errors.h"
#include "core/files.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& path) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) throw UnavailableError(fmt::format("{}: cannot create: {}", path.string(), error.message()));
}

bool is_jsonl(const fs::path& path) {
    std::string ending = path.extension().string();
    for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return ending == ".jsonl";
}

std::string dump(const nlohmann::ordered_json& row) {
    // A text that is no UTF-8 could not have come as JSON: the row says so, the others are unharmed.
    return row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void replace_all(std::string& text, const std::string& from) {
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at))
        text.erase(at, from.size());
}

}  // namespace

JobFolders::JobFolders(fs::path data, std::vector<fs::path> roots) : data_(std::move(data)), roots_(std::move(roots)) {
    make_folder(data_ / "uploads");
    make_folder(data_ / "jobs");
}

std::shared_ptr<OutputFolder> JobFolders::output(const std::string& job_id) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<OutputFolder>& folder = outputs_[job_id];
    if (!folder) {
        make_folder(data_ / "jobs" / job_id);
        folder = std::make_shared<OutputFolder>(output_path(job_id), OpenMode::kResume);
    }
    return folder;
}

void JobFolders::forget_output(const std::string& job_id) {
    const std::lock_guard lock(mutex_);
    outputs_.erase(job_id);
}

void JobFolders::remove_job(const std::string& job_id) {
    forget_output(job_id);
    std::error_code error;
    fs::remove_all(data_ / "jobs" / job_id, error);
    if (error) spdlog::warn("{}: cannot remove: {}", (data_ / "jobs" / job_id).string(), error.message());
}

fs::path JobFolders::source_path(const idl::DocumentSource& source) const {
    if (source.__isset.path) return source.path;
    if (!source.__isset.uploadId) return {};
    // One file an upload: its name is the client's.
    std::error_code error;
    for (fs::directory_iterator it(upload_folder(source.uploadId), error); !error && it != fs::directory_iterator();
         it.increment(error)) {
        return it->path();
    }
    throw UnavailableError(fmt::format("{}: the upload's file is not there", upload_folder(source.uploadId).string()));
}

void JobFolders::check_sources(const idl::JobSpec& spec) const {
    const auto invalid = [](std::size_t i, const std::string& what) {
        throw ServiceFault(ServiceCode::INVALID_ARGUMENT, fmt::format("documents[{}]: {}", i, what));
    };
    for (std::size_t i = 0; i < spec.documents.size(); ++i) {
        const idl::DocumentRef& document = spec.documents[i];
        const auto& has = document.source.__isset;
        const bool named = document.__isset.customId && !document.customId.empty();
        if (static_cast<int>(has.path) + static_cast<int>(has.uploadId) + static_cast<int>(has.text) +
                static_cast<int>(has.tokens) !=
            1) {
            invalid(i, "expected one of path, uploadId, text, tokens");
        }
        if ((has.text || has.tokens) && !named) invalid(i, "customId: a text and tokens need one");
        if (has.path) {
            if (document.source.path.empty() || document.source.path.front() != '/') {
                invalid(i, "path: expected an absolute one, on the coordinator's host");
            }
            if (named && is_jsonl(document.source.path)) invalid(i, "customId: a .jsonl has one in each row");
            if (!lies_under(document.source.path, roots_)) {
                throw ServiceFault(
                    ServiceCode::PERMISSION_DENIED,
                    fmt::format("documents[{}].path: not under one of the coordinator's roots; upload the "
                                "file instead, or ask for a root",
                                i));
            }
        }
    }
    if (spec.__isset.tokenizer && spec.tokenizer != "auto" && spec.tokenizer != "bytes" &&
        !lies_under(spec.tokenizer, roots_)) {
        throw ServiceFault(ServiceCode::PERMISSION_DENIED,
                           "tokenizer: expected auto, bytes, or a path under one of the coordinator's roots");
    }
}

std::vector<fs::path> JobFolders::write_inputs(const StoredJob& job) const {
    const fs::path folder = data_ / "jobs" / job.id / "inputs";
    make_folder(folder);
    std::vector<fs::path> inputs;
    std::optional<AtomicFile> rows;
    const auto end_rows = [&] {
        if (rows) rows->commit();
        rows.reset();
    };
    for (const idl::DocumentRef& document : job.spec.documents) {
        const bool named = document.__isset.customId && !document.customId.empty();
        const fs::path path = source_path(document.source);
        if (!path.empty() && !named) {
            end_rows();
            inputs.push_back(path);
            continue;
        }
        if (!rows) {
            inputs.push_back(folder / fmt::format("{}.jsonl", inputs.size()));
            rows.emplace(inputs.back());
        }
        nlohmann::ordered_json row;
        row["custom_id"] = document.customId;
        if (!path.empty()) {
            row["path"] = path.string();
        } else if (document.source.__isset.text) {
            row["text"] = document.source.text;
        } else {
            row["tokens"] = document.source.tokens;
        }
        rows->write(bytes_of(dump(row)));
    }
    end_rows();
    return inputs;
}

std::vector<DocumentRef> JobFolders::list(const StoredJob& job) {
    const std::vector<fs::path> inputs = write_inputs(job);
    std::vector<fs::path> allowed = roots_;
    for (const idl::DocumentRef& document : job.spec.documents) {
        if (document.source.__isset.uploadId) allowed.push_back(upload_folder(document.source.uploadId));
    }
    std::vector<DocumentRef> documents = list_documents(inputs, [&](const fs::path& path) -> std::string {
        return lies_under(path, allowed) ? "" : path.string() + ": not under one of the coordinator's roots";
    });
    for (DocumentRef& document : documents) {
        if (!document.error.empty()) document.error = for_client(job.id, document.error);
    }
    return documents;
}

std::unique_ptr<TokenReader> JobFolders::open(const StoredJob& job, const DocumentRef& document,
                                              const ModelFacts& model, const Tokenizer& tokenizer) {
    const std::shared_ptr<OutputFolder> folder = output(job.id);
    make_folder(folder->token_folder());
    return open_document(document, {.tokenizer = &tokenizer,
                                    .vocab_size = model.vocab_size,
                                    .prepend_bos = job.spec.__isset.bos && job.spec.bos,
                                    .bos_id = model.bos_id,
                                    .work_folder = folder->token_folder()});
}

std::string JobFolders::for_client(const std::string& job_id, std::string text) const {
    replace_all(text, (data_ / "jobs" / job_id / "inputs").string() + "/");
    const std::string uploads = (data_ / "uploads").string() + "/";
    for (std::size_t at = text.find(uploads); at != std::string::npos; at = text.find(uploads, at)) {
        const std::size_t slash = text.find('/', at + uploads.size());
        text.erase(at, (slash == std::string::npos ? text.size() : slash + 1) - at);
    }
    return text;
}

DocumentRef JobFolders::for_client(const std::string& job_id, DocumentRef document) const {
    document.source = for_client(job_id, document.source.string());
    return document;
}

}  // namespace fenwick
