// The store's documents, and the steps of a job from its listing to its end.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "coordinator/idl/bytes.h"
#include "coordinator/store/database.h"
#include "core/errors.h"

namespace fenwick {
namespace {

constexpr int kLastDocumentState = static_cast<int>(idl::DocumentState::CANCELLED);

void require_state(StoreConnection& db, const std::string& job_id, idl::JobState::type expected) {
    const idl::JobState::type found = read_job(db, job_id).state;
    if (found == expected) return;
    throw ServiceFault(ServiceCode::CONFLICT,
                       fmt::format("job {}: its state is {}, not {}", job_id,
                                   idl::_JobState_VALUES_TO_NAMES.at(static_cast<int>(found)),
                                   idl::_JobState_VALUES_TO_NAMES.at(static_cast<int>(expected))));
}

}  // namespace

const char* const kDocumentColumns =
    "id, job, place, custom_id, source, line, error, content, content_path, byte_offset, byte_length, element_bytes, "
    "is_signed, state, tokens, input_hash, epoch, attempts, saved_position, nll_total, state_bytes, state_hash, "
    "state_file, seconds, row";

StoredDocument document_of(const Rows& row) {
    StoredDocument document;
    document.id = row.integer(0);
    document.job_id = row.text(1);
    document.index = row.integer(2);
    document.ref.custom_id = row.text(3);
    document.ref.source = row.text(4);
    document.ref.line = row.integer(5);
    document.ref.error = row.text(6);
    document.ref.content = static_cast<DocumentContent>(row.integer(7));
    document.ref.content_path = row.text(8);
    document.ref.offset = row.integer(9);
    document.ref.length = row.integer(10);
    document.ref.element_bytes = static_cast<int>(row.integer(11));
    document.ref.is_signed = row.integer(12) != 0;
    document.state = static_cast<idl::DocumentState::type>(row.integer(13));
    document.tokens = row.integer(14);
    document.input_hash = row.text(15);
    document.epoch = row.integer(16);
    document.attempts = static_cast<std::int32_t>(row.integer(17));
    document.save.position = row.integer(18);
    document.save.nll_total = row.real(19);
    document.save.state_bytes = row.integer(20);
    document.save.state_hash = row.text(21);
    document.save.state_file = row.text(22);
    document.seconds = row.real(23);
    document.row = row.text(24);
    return document;
}

idl::DocumentPage Store::list_documents(const std::string& job_id, const std::string& page_token,
                                        std::int32_t page_size,
                                        const std::vector<idl::DocumentState::type>& states) const {
    const std::int64_t after = parse_page_token(page_token);
    const std::int64_t limit = clamp_page(page_size);
    return database_->read([&](StoreConnection& db) {
        (void)read_job(db, job_id);
        idl::DocumentPage page;
        Rows row = db.query(
            fmt::format("SELECT place, custom_id, state, tokens, position, saved_position, attempts, gang, error_code, "
                        "error_message, row, rate FROM documents WHERE job = ? AND place > ? AND state IN {} ORDER BY "
                        "place LIMIT ?",
                        state_list(states, kLastDocumentState)),
            job_id, after, limit + 1);
        while (row.next()) {
            if (std::ssize(page.documents) == limit) {
                page.__set_nextPageToken(std::to_string(page.documents.back().index));
                break;
            }
            idl::DocumentResult document;
            document.index = row.integer(0);
            document.customId = row.text(1);
            document.state = static_cast<idl::DocumentState::type>(row.integer(2));
            document.tokens = row.integer(3);
            document.position = row.integer(4);
            document.savedPosition = row.integer(5);
            document.attempts = static_cast<std::int32_t>(row.integer(6));
            document.gang = row.text(7);
            if (row.integer(8) != 0) {
                document.__set_errorCode(static_cast<ServiceCode>(row.integer(8)));
                document.__set_errorMessage(row.text(9));
            }
            document.tokensPerSecond = row.real(11);
            document.etaSeconds =
                document.tokensPerSecond > 0 && document.state == idl::DocumentState::RUNNING
                    ? static_cast<double>(document.tokens - document.position) / document.tokensPerSecond
                    : -1;
            if (std::string text = row.text(10); !text.empty()) {
                if (document.state == idl::DocumentState::COMPLETED) {
                    document.__set_nllFile(nlohmann::json::parse(text).at("nll_file").get<std::string>());
                }
                document.__set_row(std::move(text));
            }
            page.documents.push_back(std::move(document));
        }
        return page;
    });
}

idl::StateInfo Store::describe_state(const std::string& job_id, const std::string& custom_id) const {
    return database_->read([&](StoreConnection& db) {
        idl::StateInfo info;
        info.modelHash = read_job(db, job_id).model.hash;
        Rows row = db.query(
            "SELECT saved_position, state_bytes, state_hash, saved_at, state_file FROM documents WHERE job = ? AND "
            "custom_id = ? ORDER BY place LIMIT 1",
            job_id, custom_id);
        if (!row.next()) {
            throw ServiceFault(ServiceCode::NOT_FOUND, fmt::format("job {} has no document '{}'", job_id, custom_id));
        }
        info.position = row.integer(0);
        if (info.position == 0) {
            throw ServiceFault(ServiceCode::NOT_FOUND,
                               fmt::format("job {}: document '{}' has no saved state now", job_id, custom_id));
        }
        info.bytes = row.integer(1);
        info.hash = row.text(2);
        info.savedAt = row.integer(3);
        info.file = row.text(4);
        return info;
    });
}

std::int64_t Store::count_documents(idl::DocumentState::type state) const {
    return database_->read([&](StoreConnection& db) {
        const char* column = state == idl::DocumentState::QUEUED ? "queued" : "running";
        if (state != idl::DocumentState::QUEUED && state != idl::DocumentState::RUNNING) {
            throw InternalError("count_documents: queued or running");
        }
        Rows row = db.query(fmt::format("SELECT coalesce(sum({}), 0) FROM jobs WHERE state IN (1, 2)", column));
        (void)row.next();
        return row.integer(0);
    });
}

StoredJob Store::stored_job(const std::string& id) const {
    return database_->read([&](StoreConnection& db) {
        Rows row = db.query(
            "SELECT state, target, spec, client, model_path, model_hash, device, dtype, listed FROM jobs WHERE id = ?",
            id);
        if (!row.next())
            throw ServiceFault(ServiceCode::NOT_FOUND, fmt::format("job '{}': there is none of that id", id));
        StoredJob job;
        job.id = id;
        job.state = static_cast<idl::JobState::type>(row.integer(0));
        job.target = static_cast<idl::JobState::type>(row.integer(1));
        const std::string spec = row.text(2);
        job.spec = from_bytes<idl::JobSpec>(spec);
        job.client = row.text(3);
        job.model_path = row.text(4);
        job.model_hash = row.text(5);
        job.device = row.text(6);
        job.dtype = row.text(7);
        job.listed = row.integer(8) != 0;
        return job;
    });
}

std::vector<std::string> Store::jobs_in(idl::JobState::type state) const {
    return database_->read([&](StoreConnection& db) {
        std::vector<std::string> ids;
        Rows row = db.query("SELECT id FROM jobs WHERE state = ? ORDER BY number", static_cast<int>(state));
        while (row.next()) ids.push_back(row.text(0));
        return ids;
    });
}

void Store::add_documents(const std::string& job_id, const std::vector<DocumentRef>& documents,
                          std::int64_t most_active_of_client) {
    database_->write([&](StoreConnection& db) {
        require_state(db, job_id, idl::JobState::VALIDATING);
        const std::string client = read_job(db, job_id).client;
        if (most_active_of_client > 0) {
            Rows row = db.query(
                "SELECT coalesce(sum(queued + running), 0) FROM jobs WHERE client = ? AND state IN (1, 2)", client);
            (void)row.next();
            if (row.integer(0) + std::ssize(documents) > most_active_of_client) {
                throw ServiceFault(
                    ServiceCode::QUOTA_EXCEEDED,
                    fmt::format(
                        "the job has {} documents; with the {} that {} has queued or running these are more than {}",
                        documents.size(), row.integer(0), client, most_active_of_client));
            }
        }
        std::int64_t place = 0;
        for (const DocumentRef& document : documents) {
            db.run(
                "INSERT INTO documents (job, place, custom_id, source, line, error, content, content_path, "
                "byte_offset, "
                "byte_length, element_bytes, is_signed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                job_id, place++, document.custom_id, document.source.string(), document.line, document.error,
                static_cast<int>(document.content), document.content_path.string(), document.offset, document.length,
                document.element_bytes, static_cast<int>(document.is_signed));
        }
        db.run("UPDATE jobs SET listed = 1 WHERE id = ?", job_id);
        database_->touch(job_id);
    });
}

std::vector<StoredDocument> Store::unchecked_documents(const std::string& job_id, std::int64_t most) const {
    return database_->read([&](StoreConnection& db) {
        std::vector<StoredDocument> documents;
        Rows row = db.query(fmt::format("SELECT {} FROM documents WHERE job = ? AND state = 1 AND tokens < 0 ORDER BY "
                                        "place LIMIT ?",
                                        kDocumentColumns),
                            job_id, most);
        while (row.next()) documents.push_back(document_of(row));
        return documents;
    });
}

void Store::record_checked(const std::string& job_id, std::span<const CheckedDocument> documents) {
    database_->write([&](StoreConnection& db) {
        require_state(db, job_id, idl::JobState::VALIDATING);
        for (const CheckedDocument& document : documents) {
            if (document.row.empty()) {
                db.run("UPDATE documents SET tokens = ?, input_hash = ? WHERE id = ?", document.tokens,
                       document.input_hash, document.id);
            } else {
                db.run(
                    "UPDATE documents SET state = 4, row = ?, error_code = ?, error_message = ?, input_hash = ? WHERE "
                    "id = ?",
                    document.row, static_cast<int>(document.code), document.message, document.input_hash, document.id);
            }
        }
        database_->touch(job_id);
    });
}

void Store::start_job(const std::string& job_id) {
    database_->write([&](StoreConnection& db) {
        require_state(db, job_id, idl::JobState::VALIDATING);
        db.run("UPDATE jobs SET state = 2, started = ? WHERE id = ?", now_ms(), job_id);
        const idl::Job job = read_job(db, job_id);
        add_log(db, {.level = idl::LogLevel::INFO,
                     .text = fmt::format("{} documents of {} tokens queued, {} bad", job.requestCounts.queued,
                                         job.tokens, job.requestCounts.failed),
                     .job_id = job_id});
        finalize_if_done(db, job_id);
        database_->touch(job_id);
    });
}

void finalize_if_done(StoreConnection& db, const std::string& job_id) {
    db.run("UPDATE jobs SET state = 3, target = 4 WHERE id = ? AND state = 2 AND queued = 0 AND running = 0", job_id);
}

void Store::fail_job(const std::string& job_id, ServiceCode code, const std::string& message) {
    database_->write([&](StoreConnection& db) {
        if (db.run(
                "UPDATE jobs SET state = 5, finished = ?, error_code = ?, error_message = ? WHERE id = ? AND state = 1",
                now_ms(), static_cast<int>(code), message, job_id) == 0) {
            return;
        }
        add_log(db, {.level = idl::LogLevel::ERROR, .text = "failed: " + message, .job_id = job_id});
        database_->touch(job_id);
    });
}

void Store::finish_job(const std::string& job_id, const std::vector<std::string>& files) {
    database_->write([&](StoreConnection& db) {
        if (db.run("UPDATE jobs SET state = target, finished = ?, files = ? WHERE id = ? AND state IN (3, 7)", now_ms(),
                   nlohmann::json(files).dump(), job_id) == 0) {
            return;
        }
        const idl::Job job = read_job(db, job_id);
        add_log(db, {.level = idl::LogLevel::INFO,
                     .text = fmt::format("over: {} documents completed, {} failed, {} cancelled",
                                         job.requestCounts.completed, job.requestCounts.failed,
                                         job.requestCounts.cancelled),
                     .job_id = job_id});
        database_->touch(job_id);
    });
}

std::vector<LeaseKey> Store::expire_jobs() {
    return database_->write([&](StoreConnection& db) {
        std::vector<std::string> late;
        {
            Rows row = db.query("SELECT id FROM jobs WHERE state IN (1, 2) AND expires > 0 AND expires <= ?", now_ms());
            while (row.next()) late.push_back(row.text(0));
        }
        std::vector<LeaseKey> ended;
        for (const std::string& id : late) {
            const std::vector<LeaseKey> keys = end_documents(db, id, idl::JobState::EXPIRED);
            ended.insert(ended.end(), keys.begin(), keys.end());
            add_log(db, {.level = idl::LogLevel::WARNING, .text = "expired: its time is over", .job_id = id});
            database_->touch(id);
        }
        return ended;
    });
}

void Store::for_each_document(const std::string& job_id,
                              const std::function<void(const StoredDocument&)>& visit) const {
    // By pages: other readers come in between.
    constexpr std::int64_t kPage = 500;
    for (std::int64_t after = -1;;) {
        const auto documents = database_->read([&](StoreConnection& db) {
            std::vector<StoredDocument> some;
            Rows row =
                db.query(fmt::format("SELECT {} FROM documents WHERE job = ? AND place > ? ORDER BY place LIMIT ?",
                                     kDocumentColumns),
                         job_id, after, kPage);
            while (row.next()) some.push_back(document_of(row));
            return some;
        });
        for (const StoredDocument& document : documents) visit(document);
        if (std::ssize(documents) < kPage) return;
        after = documents.back().index;
    }
}

StoredDocument Store::document(std::int64_t id) const {
    return database_->read([&](StoreConnection& db) {
        Rows row = db.query(fmt::format("SELECT {} FROM documents WHERE id = ?", kDocumentColumns), id);
        if (!row.next()) throw InternalError(fmt::format("the store has no document {}", id));
        return document_of(row);
    });
}

}  // namespace fenwick
