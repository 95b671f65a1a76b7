#include "coordinator/service/service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>

#include "coordinator/build_info.h"
#include "coordinator/idl/fenwick_constants.h"
#include "coordinator/service/background.h"
#include "coordinator/service/job_folders.h"
#include "coordinator/service/job_steps.h"
#include "coordinator/service/model_catalog.h"
#include "core/errors.h"
#include "core/fenwick.h"

namespace fenwick {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kRetryDrainingMs = 5000;
/// Below this much room nothing new is taken.
constexpr std::int64_t kLeastFreeBytes = std::int64_t{64} << 20;
constexpr std::size_t kLongestName = 200;
constexpr int kMostPriority = 100;

void make_data_folder(const std::filesystem::path& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw UnavailableError(fmt::format("{}: cannot create: {}", folder.string(), error.message()));
}

std::filesystem::path with_data_folder(const std::filesystem::path& data) {
    make_data_folder(data);
    return data / "store.db";
}

[[noreturn]] void invalid(const std::string& field, const std::string& expected, const std::string& found) {
    throw ServiceFault(ServiceCode::INVALID_ARGUMENT, fmt::format("{}: expected {}, found {}", field, expected, found));
}

void check_word(const std::string& field, bool set, const std::string& value, const std::vector<std::string>& words) {
    if (!set || std::find(words.begin(), words.end(), value) != words.end()) return;
    std::string all;
    for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
    invalid(field, "one of " + all, "'" + value.substr(0, 40) + "'");
}

void check_spec(const idl::JobSpec& spec, const ModelFacts& model, std::int64_t max_documents) {
    const auto documents = static_cast<std::int64_t>(spec.documents.size());
    if (documents < 1 || documents > max_documents) {
        invalid("documents", fmt::format("1 to {}", max_documents), std::to_string(documents));
    }
    check_word("levels", spec.__isset.levels, spec.levels, {"extend", "strict"});
    check_word("device", spec.__isset.device, spec.device, {"auto", "cpu", "cuda"});
    check_word("dtype", spec.__isset.dtype, spec.dtype, {"auto", "fp32", "bf16"});
    if (spec.__isset.device && spec.device == "cpu" && spec.__isset.dtype && spec.dtype == "bf16") {
        invalid("dtype", "fp32 or auto, since the CPU computes in fp32", "bf16");
    }
    if (spec.__isset.priority && (spec.priority < -kMostPriority || spec.priority > kMostPriority)) {
        invalid("priority", "-100 to 100", std::to_string(spec.priority));
    }
    if (spec.__isset.maxAttempts && (spec.maxAttempts < 1 || spec.maxAttempts > 100)) {
        invalid("maxAttempts", "1 to 100", std::to_string(spec.maxAttempts));
    }
    constexpr std::int64_t kTenYears = std::int64_t{10} * 365 * 86'400;
    if (spec.__isset.expiresAfterSeconds && (spec.expiresAfterSeconds < 1 || spec.expiresAfterSeconds > kTenYears)) {
        invalid("expiresAfterSeconds", fmt::format("1 to {}", kTenYears), std::to_string(spec.expiresAfterSeconds));
    }
    if (spec.__isset.name && spec.name.size() > kLongestName) {
        invalid("name", fmt::format("at most {} bytes", kLongestName), std::to_string(spec.name.size()));
    }
    if (spec.__isset.bos && spec.bos && model.bos_id < 0) {
        invalid("bos", "false, since the model's config.json names no bos_token_id within its vocabulary", "true");
    }
}

std::int64_t free_bytes(const std::filesystem::path& folder) {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(folder, error);
    return error ? -1 : static_cast<std::int64_t>(space.available);
}

}  // namespace

/// The threads that move jobs when no client and no gang does.
struct Service::Threads {
    Threads(Service& service, Store& store, JobFolders& folders, ModelCatalog& models, const ServeConfig& config)
        : steps(store, folders, models, config.max_documents_per_job, config.limits.active_documents),
          checker("jobs", milliseconds(1000), [&] { return service.check_jobs(); }),
          finisher("results", milliseconds(2000), [&] { return service.finish_jobs(); }),
          clock("time", milliseconds(1000), [&] { return service.end_late_ones(); }) {}
    JobSteps steps;
    Background checker;
    Background finisher;
    Background clock;
};

Service::Service(ServeConfig config)
    : config_(std::move(config)),
      store_(with_data_folder(config_.data)),
      models_(std::make_unique<ModelCatalog>(config_.models, config_.model_roots)),
      folders_(std::make_unique<JobFolders>(config_.data, config_.roots)),
      threads_(std::make_unique<Threads>(*this, store_, *folders_, *models_, config_)),
      started_at_(now_ms()) {}

Service::~Service() {
    stop();
}

void Service::start() {
    threads_->checker.start();
    threads_->finisher.start();
    threads_->clock.start();
}

void Service::stop() {
    threads_->checker.stop();
    threads_->finisher.stop();
    threads_->clock.stop();
}

bool Service::check_jobs() {
    bool more = false;
    for (const std::string& id : store_.jobs_in(idl::JobState::VALIDATING)) {
        const bool unfinished = threads_->steps.check(id);
        more = more || unfinished;
        if (!unfinished) job_moved();  // documents to compute, or nothing left to do
    }
    return more;
}

bool Service::finish_jobs() {
    for (const idl::JobState::type state : {idl::JobState::FINALIZING, idl::JobState::CANCELLING}) {
        for (const std::string& id : store_.jobs_in(state)) {
            try {
                threads_->steps.finish(id);
            } catch (const Error& error) {
                spdlog::error("job {}: its result cannot be written yet: {}", id, error.what());
            }
        }
    }
    return false;
}

bool Service::end_late_ones() {
    const std::vector<LeaseKey> ended = store_.expire_jobs();
    if (!ended.empty() && revoke_) revoke_(ended, "the job's time is over");
    for (const std::string& id : store_.expire_uploads()) {
        std::error_code error;
        std::filesystem::remove_all(folders_->upload_folder(id), error);
        if (error) spdlog::warn("{}: cannot remove: {}", folders_->upload_folder(id).string(), error.message());
    }
    return false;
}

void Service::job_moved() {
    threads_->finisher.notify();
    if (wake_) wake_();
}

void Service::drain() {
    draining_.store(true);
}

void Service::require_open() const {
    if (draining_.load()) {
        throw ServiceFault(ServiceCode::OVERLOADED, "the coordinator drains and takes nothing new; try again later",
                           true, kRetryDrainingMs);
    }
    const std::int64_t free = free_bytes(config_.data);
    if (free >= 0 && free < kLeastFreeBytes) {
        throw ServiceFault(ServiceCode::STORAGE_FULL,
                           fmt::format("the coordinator's disk has {} bytes left and takes nothing new", free), true,
                           kRetryDrainingMs);
    }
}

idl::Job Service::own_job(const Caller& caller, const std::string& id) const {
    idl::Job job = store_.job(id);
    if (!caller.admin && job.client != caller.client) {
        throw ServiceFault(ServiceCode::NOT_FOUND, fmt::format("job '{}': there is none of that id", id));
    }
    return job;
}

idl::ServerInfo Service::server_info(std::int32_t protocol_version) const {
    if (protocol_version != idl::g_fenwick_constants.PROTOCOL_VERSION) {
        throw ServiceFault(ServiceCode::VERSION_MISMATCH,
                           fmt::format("this coordinator speaks protocol {}, the client {}",
                                       idl::g_fenwick_constants.PROTOCOL_VERSION, protocol_version));
    }
    idl::ServerInfo info;
    info.protocolVersion = idl::g_fenwick_constants.PROTOCOL_VERSION;
    info.version = build_info::kVersion;
    info.commit = build_info::kCommit;
    info.models = models_->list();
    info.startedAt = started_at_;
    info.maxFrameBytes = config_.max_frame_bytes;
    info.maxChunkBytes = kMaxChunkBytes;
    info.maxDocumentsPerJob = config_.max_documents_per_job;
    return info;
}

idl::Health Service::health() const {
    idl::Health health;
    health.live = true;
    health.freeBytes = free_bytes(config_.data);
    health.queuedDocuments = store_.count_documents(idl::DocumentState::QUEUED);
    health.runningDocuments = store_.count_documents(idl::DocumentState::RUNNING);
    health.gangs = count_gangs();
    try {
        require_open();
        health.ready = true;
    } catch (const ServiceFault& fault) {
        health.reason = fault.what();
    }
    return health;
}

std::int32_t Service::count_gangs() const {
    std::int32_t count = 0;
    const idl::GangPage page = store_.list_gangs("", 1000);
    for (const idl::GangInfo& gang : page.gangs) {
        if (gang.state != idl::GangState::LOST && gang.state != idl::GangState::ENDED) ++count;
    }
    return count;
}

idl::Job Service::submit(const Caller& caller, const idl::JobSpec& spec, const std::string& idempotency_key) {
    if (idempotency_key.size() > kLongestName) {
        invalid("idempotencyKey", fmt::format("at most {} bytes", kLongestName),
                std::to_string(idempotency_key.size()));
    }
    // A submit that was answered before is answered again, even now.
    if (auto known = store_.find_submitted(caller.client, idempotency_key, spec)) return *known;
    require_open();
    const ModelFacts model = models_->resolve(spec.model);
    check_spec(spec, model, config_.max_documents_per_job);
    folders_->check_sources(spec);
    NewJob job;
    job.client = caller.client;
    job.idempotency_key = idempotency_key;
    job.spec = spec;
    job.model_name = model.name;
    job.model_path = model.path.string();
    job.model_hash = model.hash;
    job.default_attempts = config_.attempts;
    job.limits = config_.limits;
    idl::Job made = store_.submit(job);
    spdlog::info("job {}: submitted by {}, {} entries", made.id, caller.client, spec.documents.size());
    threads_->checker.notify();
    return made;
}

idl::Plan Service::plan(const Caller& caller, const idl::JobSpec& spec) {
    const ModelFacts model = models_->resolve(spec.model);
    check_spec(spec, model, config_.max_documents_per_job);
    folders_->check_sources(spec);
    StoredJob job;
    job.id = fmt::format("plan-{}", plans_.fetch_add(1));
    job.spec = spec;
    job.client = caller.client;
    idl::Plan plan;
    plan.modelHash = model.hash;
    plan.family = model.family;
    plan.parameters = model.parameters;
    plan.gangs = count_gangs();
    const std::string choice = spec.__isset.tokenizer ? spec.tokenizer : "auto";
    try {
        const auto tokenizer = models_->tokenizer(choice, model);
        for (const DocumentRef& document : folders_->list(job)) {
            ++plan.documents;
            try {
                const std::int64_t tokens = folders_->open(job, document, model, *tokenizer)->size();
                plan.tokens += tokens;
                plan.longestTokens = std::max(plan.longestTokens, tokens);
                plan.blocks += (tokens + kBlockTokens - 1) / kBlockTokens;
            } catch (const DataError& error) {
                ++plan.badDocuments;
                constexpr std::size_t kShown = 10;
                if (plan.firstErrors.size() < kShown)
                    plan.firstErrors.push_back(folders_->for_client(job.id, error.what()));
            }
        }
    } catch (const UsageError& error) {
        folders_->remove_job(job.id);
        throw ServiceFault(ServiceCode::INVALID_ARGUMENT, folders_->for_client(job.id, error.what()));
    } catch (...) {
        folders_->remove_job(job.id);
        throw;
    }
    folders_->remove_job(job.id);
    // The worst position is the one with most set bits below the longest document's end.
    const auto blocks = static_cast<std::uint64_t>(plan.longestTokens / kBlockTokens);
    plan.stateBytes = static_cast<std::int64_t>(std::bit_width(blocks)) * model.summary_bytes + model.halo_bytes;
    return plan;
}

idl::Job Service::job(const Caller& caller, const std::string& id) const {
    return own_job(caller, id);
}

idl::JobPage Service::list_jobs(const Caller& caller, const std::string& page_token, std::int32_t page_size,
                                const std::vector<idl::JobState::type>& states) const {
    return store_.list_jobs(caller.admin ? "" : caller.client, page_token, page_size, states);
}

idl::DocumentPage Service::list_documents(const Caller& caller, const std::string& job_id,
                                          const std::string& page_token, std::int32_t page_size,
                                          const std::vector<idl::DocumentState::type>& states) const {
    (void)own_job(caller, job_id);
    return store_.list_documents(job_id, page_token, page_size, states);
}

idl::Job Service::cancel(const Caller& caller, const std::string& job_id) {
    (void)own_job(caller, job_id);
    const std::vector<LeaseKey> ended = store_.cancel(job_id);
    if (!ended.empty() && revoke_) revoke_(ended, "the job was cancelled");
    job_moved();
    return store_.job(job_id);
}

idl::Job Service::retry(const Caller& caller, const std::string& job_id, bool only_failed) {
    (void)own_job(caller, job_id);
    require_open();
    (void)store_.retry(job_id, only_failed);
    threads_->checker.notify();
    return store_.job(job_id);
}

idl::LogPage Service::read_logs(const Caller& caller, const std::string& job_id, std::int64_t after_sequence,
                                std::int32_t max_entries) const {
    (void)own_job(caller, job_id);
    return store_.read_logs(job_id, after_sequence, max_entries);
}

idl::StateInfo Service::describe_state(const Caller& caller, const std::string& job_id,
                                       const std::string& custom_id) const {
    (void)own_job(caller, job_id);
    return store_.describe_state(job_id, custom_id);
}

idl::GangPage Service::list_workers(const Caller& /*caller*/, const std::string& page_token,
                                    std::int32_t page_size) const {
    return store_.list_gangs(page_token, page_size);
}

idl::GangInfo Service::drain_worker(const Caller& caller, const std::string& gang_id) {
    if (!caller.admin) {
        throw ServiceFault(ServiceCode::PERMISSION_DENIED,
                           "drainWorker: this client may not drain gangs (admin = true)");
    }
    const idl::GangInfo gang = store_.gang(gang_id);
    if (!drain_gang_ || !drain_gang_(gang.id)) {
        throw ServiceFault(ServiceCode::CONFLICT, fmt::format("gang {}: it is not connected now", gang_id));
    }
    return store_.gang(gang_id);
}

idl::Usage Service::usage(const Caller& caller, const std::string& job_id) const {
    return job_id.empty() ? store_.client_usage(caller.client) : own_job(caller, job_id).usage;
}

}  // namespace fenwick
