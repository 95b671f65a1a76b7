// The store's leases. A lease is a document in the state RUNNING and its epoch: every statement that writes under one
// asks for both, so that whoever was given up in the meantime changes nothing.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/store/database.h"

namespace fenwick {
namespace {

struct Candidate {
    std::string job_id;
    std::string model_path;
    std::string model_hash;
    bool bos = false;
};

bool contains(const std::vector<std::string>& texts, const std::string& text) {
    return std::find(texts.begin(), texts.end(), text) != texts.end();
}

/// The first job with something queued that this gang can compute.
std::optional<Candidate> find_job(StoreConnection& db, const LeaseRequest& request) {
    Rows row = db.query(
        "SELECT id, model_path, model_hash, bos, device, dtype FROM jobs WHERE state = 2 AND queued > 0 ORDER BY "
        "priority "
        "DESC, number");
    while (row.next()) {
        const std::string hash = row.text(2);
        if (!request.model_hashes.empty() && !contains(request.model_hashes, hash)) continue;
        if (contains(request.excluded_models, hash)) continue;
        const std::string device = row.text(4);
        const std::string dtype = row.text(5);
        if (!device.empty() && device != request.device) continue;
        if (!dtype.empty() && dtype != request.dtype) continue;
        return Candidate{row.text(0), row.text(1), hash, row.integer(3) != 0};
    }
    return std::nullopt;
}

/// The running document of that epoch.
std::optional<StoredDocument> running(StoreConnection& db, LeaseKey key) {
    Rows row =
        db.query(fmt::format("SELECT {} FROM documents WHERE id = ? AND epoch = ? AND state = 2", kDocumentColumns),
                 key.document, key.epoch);
    if (!row.next()) return std::nullopt;
    return document_of(row);
}

void fail_document(StoreConnection& db, const StoredDocument& document, ServiceCode code, const std::string& message,
                   const std::string& row) {
    db.run(
        "UPDATE documents SET state = 4, gang = '', rate = 0, error_code = ?, error_message = ?, row = ? WHERE id = ?",
        static_cast<int>(code), message, row, document.id);
    add_log(db, {.level = idl::LogLevel::ERROR,
                 .text = fmt::format("failed, {}: {}", name_of(code), message),
                 .job_id = document.job_id,
                 .custom_id = document.ref.custom_id});
}

}  // namespace

std::optional<Lease> Store::lease_next(const LeaseRequest& request) {
    // Most calls find nothing: they need not keep the writers waiting.
    if (!database_->read([&](StoreConnection& db) { return find_job(db, request).has_value(); })) return std::nullopt;
    return database_->write([&](StoreConnection& db) -> std::optional<Lease> {
        const std::optional<Candidate> job = find_job(db, request);
        if (!job) return std::nullopt;
        Lease lease;
        {
            Rows row =
                db.query(fmt::format("SELECT {} FROM documents WHERE job = ? AND state = 1 ORDER BY place LIMIT 1",
                                     kDocumentColumns),
                         job->job_id);
            if (!row.next()) throw InternalError("job " + job->job_id + ": its count of queued documents is wrong");
            lease.document = document_of(row);
        }
        StoredDocument& document = lease.document;
        document.epoch += 1;
        document.state = idl::DocumentState::RUNNING;
        lease.key = {document.id, document.epoch};
        lease.first = document.save.position;
        lease.limit = document.tokens;
        if (request.stretch_tokens > 0 && lease.limit - lease.first > request.stretch_tokens) {
            lease.limit = lease.first + request.stretch_tokens;
        }
        lease.model_path = job->model_path;
        lease.model_hash = job->model_hash;
        lease.bos = job->bos;
        db.run("UPDATE documents SET state = 2, epoch = ?, gang = ?, position = saved_position, rate = 0 WHERE id = ?",
               document.epoch, request.gang_id, document.id);
        // What computes the first document computes them all: other arithmetic gives other bits.
        db.run("UPDATE jobs SET device = ?, dtype = ? WHERE id = ? AND (device <> ? OR dtype <> ?)", request.device,
               request.dtype, job->job_id, request.device, request.dtype);
        database_->touch(job->job_id);
        return lease;
    });
}

bool Store::is_current(LeaseKey key) const {
    return database_->read([&](StoreConnection& db) { return running(db, key).has_value(); });
}

bool Store::record_save(LeaseKey key, const DocumentSave& save, double seconds, const WorkDone& work) {
    return database_->write([&](StoreConnection& db) {
        const std::optional<StoredDocument> document = running(db, key);
        if (!document) return false;
        db.run(
            "UPDATE documents SET saved_position = ?, position = ?, nll_total = ?, state_bytes = ?, state_hash = ?, "
            "state_file = ?, saved_at = ?, seconds = seconds + ?, attempts = 0 WHERE id = ?",
            save.position, save.position, save.nll_total, save.state_bytes, save.state_hash, save.state_file, now_ms(),
            seconds, key.document);
        add_usage(db, document->job_id, work, -1, 0);
        database_->touch(document->job_id);
        return true;
    });
}

bool Store::complete(LeaseKey key, const std::string& row, std::int64_t scored_tokens, const WorkDone& work) {
    return database_->write([&](StoreConnection& db) {
        const std::optional<StoredDocument> document = running(db, key);
        if (!document) return false;
        db.run(
            "UPDATE documents SET state = 3, gang = '', rate = 0, position = tokens, saved_position = 0, row = ? WHERE "
            "id = ?",
            row, key.document);
        add_usage(db, document->job_id, work, document->tokens, scored_tokens);
        finalize_if_done(db, document->job_id);
        database_->touch(document->job_id);
        return true;
    });
}

bool Store::fail(LeaseKey key, ServiceCode code, const std::string& message, const std::string& row,
                 const WorkDone& work) {
    return database_->write([&](StoreConnection& db) {
        const std::optional<StoredDocument> document = running(db, key);
        if (!document) return false;
        fail_document(db, *document, code, message, row);
        add_usage(db, document->job_id, work, 0, 0);
        finalize_if_done(db, document->job_id);
        database_->touch(document->job_id);
        return true;
    });
}

ReleaseOutcome Store::release(LeaseKey key, const std::string& reason, bool counts, const std::string& row_if_failed,
                              const WorkDone& work) {
    return database_->write([&](StoreConnection& db) {
        const std::optional<StoredDocument> document = running(db, key);
        if (!document) return ReleaseOutcome::kFenced;
        std::int64_t most = 0;
        {
            Rows row = db.query("SELECT attempts FROM jobs WHERE id = ?", document->job_id);
            (void)row.next();
            most = row.integer(0);
        }
        add_usage(db, document->job_id, work, -1, 0);
        const std::int32_t attempts = document->attempts + (counts ? 1 : 0);
        db.run("UPDATE documents SET attempts = ? WHERE id = ?", attempts, key.document);
        database_->touch(document->job_id);
        if (counts && attempts >= most) {
            fail_document(db, *document, ServiceCode::WORKER_LOST,
                          fmt::format("given up after {} attempts; the last: {}", attempts, reason), row_if_failed);
            finalize_if_done(db, document->job_id);
            return ReleaseOutcome::kFailed;
        }
        db.run(
            "UPDATE documents SET state = 1, epoch = epoch + 1, gang = '', rate = 0, position = saved_position WHERE "
            "id "
            "= ?",
            key.document);
        if (!reason.empty()) {
            add_log(db, {.level = counts ? idl::LogLevel::WARNING : idl::LogLevel::INFO,
                         .text = fmt::format("queued again at token {}: {}", document->save.position, reason),
                         .job_id = document->job_id,
                         .custom_id = document->ref.custom_id});
        }
        return ReleaseOutcome::kRequeued;
    });
}

void Store::forget_save(std::int64_t document) {
    database_->write([&](StoreConnection& db) {
        db.run("UPDATE documents SET saved_position = 0, position = 0, nll_total = 0, seconds = 0 WHERE id = ?",
               document);
    });
}

void Store::record_progress(std::span<const RunningProgress> progress) {
    if (progress.empty()) return;
    database_->write([&](StoreConnection& db) {
        for (const RunningProgress& each : progress) {
            std::string job;
            {
                Rows row = db.query(
                    "UPDATE documents SET position = ?, rate = ? WHERE id = ? AND epoch = ? AND state = 2 "
                    "RETURNING job",
                    each.position, each.tokens_per_second, each.key.document, each.key.epoch);
                if (!row.next()) continue;
                job = row.text(0);
                (void)row.next();
            }
            database_->touch(job);
        }
    });
}

}  // namespace fenwick
