// The store's jobs as clients see them: submit, look, list, cancel, retry, usage.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "coordinator/idl/bytes.h"
#include "coordinator/store/database.h"
#include "core/hash.h"

namespace fenwick {
namespace {

constexpr int kLastJobState = static_cast<int>(idl::JobState::CANCELLED);

std::string hash_of(const std::string& bytes) {
    Hasher hasher;
    hasher.update(bytes);
    return hasher.hex();
}

std::string or_empty(bool set, const std::string& text) {
    return set && text != "auto" ? text : "";
}

bool is_over(idl::JobState::type state) {
    return state == idl::JobState::COMPLETED || state == idl::JobState::FAILED || state == idl::JobState::EXPIRED ||
           state == idl::JobState::CANCELLED;
}

/// The job that this client submitted with this key. Throws CONFLICT when it was another one.
std::optional<idl::Job> find_by_key(StoreConnection& db, const std::string& client, const std::string& key,
                                    const std::string& spec_hash) {
    if (key.empty()) return std::nullopt;
    std::string id;
    {
        Rows row = db.query("SELECT id, spec_hash FROM jobs WHERE client = ? AND key = ?", client, key);
        if (!row.next()) return std::nullopt;
        id = row.text(0);
        if (row.text(1) != spec_hash) {
            throw ServiceFault(ServiceCode::CONFLICT,
                               fmt::format("idempotencyKey '{}': job {} was submitted with it, from another spec; take "
                                           "a new key for a new job",
                                           key, id));
        }
    }
    return read_job(db, id);
}

void check_limits(StoreConnection& db, const NewJob& job) {
    std::int64_t jobs = 0;
    std::int64_t documents = 0;
    {
        Rows row = db.query(
            "SELECT count(*), coalesce(sum(queued + running), 0) FROM jobs WHERE client = ? AND state IN (1, 2, 3, 7)",
            job.client);
        (void)row.next();
        jobs = row.integer(0);
        documents = row.integer(1);
    }
    constexpr std::int64_t kRetryMs = 60'000;
    if (job.limits.active_jobs > 0 && jobs >= job.limits.active_jobs) {
        throw ServiceFault(
            ServiceCode::QUOTA_EXCEEDED,
            fmt::format("{} has {} jobs that are not over, the most that one client may have", job.client, jobs), true,
            kRetryMs);
    }
    const auto more = static_cast<std::int64_t>(job.spec.documents.size());
    if (job.limits.active_documents > 0 && documents + more > job.limits.active_documents) {
        throw ServiceFault(ServiceCode::QUOTA_EXCEEDED,
                           fmt::format("{} has {} documents queued or running, and may have {}: {} more are too many",
                                       job.client, documents, job.limits.active_documents, more),
                           true, kRetryMs);
    }
}

void use_uploads(StoreConnection& db, const NewJob& job) {
    for (const idl::DocumentRef& document : job.spec.documents) {
        if (!document.source.__isset.uploadId) continue;
        const std::string& id = document.source.uploadId;
        if (db.run("UPDATE uploads SET used = 1 WHERE id = ? AND client = ? AND committed = 1", id, job.client) == 0) {
            throw ServiceFault(ServiceCode::INVALID_ARGUMENT,
                               fmt::format("uploadId '{}': {} has no committed upload of that id", id, job.client));
        }
    }
}

}  // namespace

const char* const kJobColumns =
    "id, state, name, client, model_name, model_path, model_hash, priority, created, started, finished, expires, "
    "version, tokens, tokens_done, error_code, error_message, files, queued, running, completed, failed, cancelled, "
    "tokenizer, bos, levels, device, dtype, used_tokens, used_scored, used_computed, used_rank_seconds, "
    "used_gpu_seconds";

idl::Job job_of(StoreConnection& db, const Rows& row) {
    idl::Job job;
    job.id = row.text(0);
    job.state = static_cast<idl::JobState::type>(row.integer(1));
    job.name = row.text(2);
    job.client = row.text(3);
    job.model.__set_name(row.text(4));
    job.model.__set_path(row.text(5));
    job.model.__set_hash(row.text(6));
    job.priority = static_cast<std::int32_t>(row.integer(7));
    job.createdAt = row.integer(8);
    job.startedAt = row.integer(9);
    job.finishedAt = row.integer(10);
    job.expiresAt = row.integer(11);
    job.version = row.integer(12);
    job.tokens = row.integer(13);
    job.tokensDone = row.integer(14);
    if (row.integer(15) != 0) {
        job.__set_errorCode(static_cast<ServiceCode>(row.integer(15)));
        job.__set_errorMessage(row.text(16));
    }
    job.files = nlohmann::json::parse(row.text(17)).get<std::vector<std::string>>();
    idl::RequestCounts& counts = job.requestCounts;
    counts.queued = row.integer(18);
    counts.running = row.integer(19);
    counts.completed = row.integer(20);
    counts.failed = row.integer(21);
    counts.cancelled = row.integer(22);
    counts.total = counts.queued + counts.running + counts.completed + counts.failed + counts.cancelled;
    job.tokenizer = row.text(23);
    job.bos = row.integer(24) != 0;
    job.levels = row.text(25);
    job.device = row.text(26);
    job.dtype = row.text(27);
    job.usage.tokens = row.integer(28);
    job.usage.scoredTokens = row.integer(29);
    job.usage.computedTokens = row.integer(30);
    job.usage.rankSeconds = row.real(31);
    job.usage.gpuSeconds = row.real(32);
    job.usage.jobs = 1;
    job.usage.documents = counts.completed + counts.failed;
    job.etaSeconds = -1;
    if (counts.running > 0) {
        Rows rate = db.query("SELECT coalesce(sum(rate), 0) FROM documents WHERE job = ? AND state = 2", job.id);
        if (rate.next()) job.tokensPerSecond = rate.real(0);
    }
    const bool checked = job.state != idl::JobState::VALIDATING;
    if (is_over(job.state)) {
        job.etaSeconds = 0;
    } else if (checked && job.tokensPerSecond > 0) {
        job.etaSeconds =
            static_cast<double>(std::max<std::int64_t>(job.tokens - job.tokensDone, 0)) / job.tokensPerSecond;
    }
    return job;
}

idl::Job read_job(StoreConnection& db, const std::string& id) {
    Rows row = db.query(fmt::format("SELECT {} FROM jobs WHERE id = ?", kJobColumns), id);
    if (!row.next()) throw ServiceFault(ServiceCode::NOT_FOUND, fmt::format("job '{}': there is none of that id", id));
    return job_of(db, row);
}

std::optional<idl::Job> Store::find_submitted(const std::string& client, const std::string& key,
                                              const idl::JobSpec& spec) const {
    if (key.empty()) return std::nullopt;
    const std::string hash = hash_of(to_bytes(spec));
    return database_->read([&](StoreConnection& db) { return find_by_key(db, client, key, hash); });
}

idl::Job Store::submit(const NewJob& job) {
    const std::string spec = to_bytes(job.spec);
    const std::string spec_hash = hash_of(spec);
    return database_->write([&](StoreConnection& db) {
        if (auto known = find_by_key(db, job.client, job.idempotency_key, spec_hash)) return *known;
        check_limits(db, job);
        use_uploads(db, job);
        const std::string id = new_id("job");
        const std::int64_t now = now_ms();
        const idl::JobSpec& s = job.spec;
        {
            Rows insert = db.query(
                "INSERT INTO jobs (id, client, spec_hash, state, target, name, priority, created, expires, model_name, "
                "model_path, model_hash, device, dtype, bos, levels, tokenizer, attempts, spec, key) "
                "VALUES (?, ?, ?, 1, 4, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                id, job.client, spec_hash, s.__isset.name ? s.name : "", s.__isset.priority ? s.priority : 0, now,
                s.__isset.expiresAfterSeconds ? now + 1000 * s.expiresAfterSeconds : std::int64_t{0}, job.model_name,
                job.model_path, job.model_hash, or_empty(s.__isset.device, s.device),
                or_empty(s.__isset.dtype, s.dtype), static_cast<int>(s.__isset.bos && s.bos),
                s.__isset.levels ? s.levels : "extend", s.__isset.tokenizer ? s.tokenizer : "auto",
                s.__isset.maxAttempts ? s.maxAttempts : job.default_attempts);
            insert.statement().bind(17, spec.data(), static_cast<int>(spec.size()));
            if (!job.idempotency_key.empty()) insert.statement().bind(18, job.idempotency_key);
            insert.statement().exec();
        }
        db.run("INSERT INTO usage (client, jobs) VALUES (?, 1) ON CONFLICT (client) DO UPDATE SET jobs = jobs + 1",
               job.client);
        add_log(db, {.level = idl::LogLevel::INFO, .text = "submitted by " + job.client, .job_id = id});
        database_->touch(id);
        return read_job(db, id);
    });
}

idl::Job Store::job(const std::string& id) const {
    return database_->read([&](StoreConnection& db) { return read_job(db, id); });
}

std::int64_t Store::job_version(const std::string& id) const {
    return database_->read([&](StoreConnection& db) {
        Rows row = db.query("SELECT version FROM jobs WHERE id = ?", id);
        if (!row.next())
            throw ServiceFault(ServiceCode::NOT_FOUND, fmt::format("job '{}': there is none of that id", id));
        return row.integer(0);
    });
}

idl::JobPage Store::list_jobs(const std::string& client, const std::string& page_token, std::int32_t page_size,
                              const std::vector<idl::JobState::type>& states) const {
    const std::int64_t before = parse_page_token(page_token);
    const std::int64_t limit = clamp_page(page_size);
    return database_->read([&](StoreConnection& db) {
        idl::JobPage page;
        Rows row = db.query(
            fmt::format("SELECT {}, number FROM jobs WHERE (? = '' OR client = ?) AND (? < 0 OR number < ?) AND state "
                        "IN {} ORDER BY number DESC LIMIT ?",
                        kJobColumns, state_list(states, kLastJobState)),
            client, client, before, before, limit + 1);
        std::int64_t last = 0;
        while (row.next()) {
            if (std::ssize(page.jobs) == limit) {
                page.__set_nextPageToken(std::to_string(last));
                break;
            }
            page.jobs.push_back(job_of(db, row));
            last = row.statement().getColumn("number").getInt64();
        }
        return page;
    });
}

std::vector<LeaseKey> end_documents(StoreConnection& db, const std::string& job_id, idl::JobState::type target) {
    std::vector<LeaseKey> ended;
    {
        Rows row = db.query("SELECT id, epoch FROM documents WHERE job = ? AND state = 2", job_id);
        while (row.next()) ended.push_back({row.integer(0), row.integer(1)});
    }
    db.run("UPDATE documents SET state = 5, epoch = epoch + 1, gang = '', rate = 0 WHERE job = ? AND state IN (1, 2)",
           job_id);
    db.run("UPDATE jobs SET state = 7, target = ? WHERE id = ?", static_cast<int>(target), job_id);
    return ended;
}

std::vector<LeaseKey> Store::cancel(const std::string& job_id) {
    return database_->write([&](StoreConnection& db) -> std::vector<LeaseKey> {
        const idl::Job job = read_job(db, job_id);
        if (job.state != idl::JobState::VALIDATING && job.state != idl::JobState::IN_PROGRESS) return {};
        std::vector<LeaseKey> ended = end_documents(db, job_id, idl::JobState::CANCELLED);
        add_log(db, {.level = idl::LogLevel::INFO, .text = "cancelled on request", .job_id = job_id});
        database_->touch(job_id);
        return ended;
    });
}

std::int64_t Store::retry(const std::string& job_id, bool only_failed) {
    return database_->write([&](StoreConnection& db) -> std::int64_t {
        const idl::Job job = read_job(db, job_id);
        if (!is_over(job.state)) {
            throw ServiceFault(ServiceCode::CONFLICT, fmt::format("job {} is not over; its failed documents can be "
                                                                  "retried when it is",
                                                                  job_id));
        }
        const std::int64_t queued = db.run(
            fmt::format(
                "UPDATE documents SET state = 1, attempts = 0, tokens = -1, position = 0, saved_position = 0, "
                "rate = 0, seconds = 0, error_code = 0, error_message = '', row = '' WHERE job = ? AND state IN {}",
                only_failed ? "(4, 5)" : "(3, 4, 5)"),
            job_id);
        // A job that failed as a whole has no documents yet: it is listed again.
        if (queued == 0 && job.state != idl::JobState::FAILED) return 0;
        db.run(
            "UPDATE jobs SET state = 1, target = 4, finished = 0, expires = 0, error_code = 0, error_message = '', "
            "files = '[]' WHERE id = ?",
            job_id);
        add_log(db, {.level = idl::LogLevel::INFO,
                     .text = fmt::format("{} documents are tried again", queued),
                     .job_id = job_id});
        database_->touch(job_id);
        return queued;
    });
}

idl::Usage Store::job_usage(const std::string& job_id) const {
    return job(job_id).usage;
}

idl::Usage Store::client_usage(const std::string& client) const {
    return database_->read([&](StoreConnection& db) {
        idl::Usage usage;
        Rows row = db.query(
            "SELECT tokens, scored, computed, rank_seconds, gpu_seconds, jobs, documents FROM usage WHERE client = ?",
            client);
        if (!row.next()) return usage;
        usage.tokens = row.integer(0);
        usage.scoredTokens = row.integer(1);
        usage.computedTokens = row.integer(2);
        usage.rankSeconds = row.real(3);
        usage.gpuSeconds = row.real(4);
        usage.jobs = row.integer(5);
        usage.documents = row.integer(6);
        return usage;
    });
}

void add_usage(StoreConnection& db, const std::string& job_id, const WorkDone& work, std::int64_t tokens,
               std::int64_t scored_tokens) {
    const int over = tokens >= 0 ? 1 : 0;
    db.run(
        "UPDATE jobs SET used_tokens = used_tokens + ?, used_scored = used_scored + ?, used_computed = used_computed "
        "+ ?, used_rank_seconds = used_rank_seconds + ?, used_gpu_seconds = used_gpu_seconds + ? WHERE id = ?",
        std::max<std::int64_t>(tokens, 0), scored_tokens, work.computed_tokens, work.rank_seconds, work.gpu_seconds,
        job_id);
    db.run(
        "UPDATE usage SET tokens = tokens + ?, scored = scored + ?, computed = computed + ?, rank_seconds = "
        "rank_seconds + ?, gpu_seconds = gpu_seconds + ?, documents = documents + ? WHERE client = (SELECT client "
        "FROM jobs WHERE id = ?)",
        std::max<std::int64_t>(tokens, 0), scored_tokens, work.computed_tokens, work.rank_seconds, work.gpu_seconds,
        over, job_id);
}

}  // namespace fenwick
