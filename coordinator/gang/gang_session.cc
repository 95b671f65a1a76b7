#include "coordinator/gang/gang_session.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <thread>

#include "coordinator/address.h"
#include "coordinator/build_info.h"
#include "coordinator/control/rank_link.h"
#include "coordinator/gang/work_folder.h"
#include "coordinator/idl/fenwick_constants.h"
#include "coordinator/mpi_world.h"
#include "coordinator/stop_signal.h"
#include "core/errors.h"
#include "core/files.h"
#include "parallel/world_guard.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{200};

std::string host_name() {
    std::array<char, 256> name = {};
    if (gethostname(name.data(), name.size() - 1) != 0) {
        throw UnavailableError(fmt::format("gethostname: {}", std::strerror(errno)));
    }
    return name.data();
}

std::string read_token(const WorkerOptions& options) {
    if (options.token_file.empty()) return options.token;
    std::string token = read_text_file(options.token_file, 4096);
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
    return token;
}

/// `text` of rank 0, on every rank; cut off where it does not fit.
template <std::size_t kSize>
std::string broadcast_text(Communicator& comm, const std::string& text) {
    std::array<char, kSize> buffer = {};
    if (comm.rank() == 0) text.copy(buffer.data(), buffer.size() - 1);
    broadcast(comm, std::as_writable_bytes(std::span(buffer)));
    return buffer.data();
}

}  // namespace

/// What rank 0 tells the others between two models.
struct GangSession::Order {
    std::int32_t serve = 0;  ///< 1: load `path` and serve; 0: end with `code`
    std::int32_t code = 0;
    std::array<char, 4096> path = {};
};

GangSession::GangSession(const WorkerOptions& options, Communicator& comm, Launch launch, std::atomic<bool>* stop_mpi)
    : options_(options),
      comm_(comm),
      launch_(launch),
      threads_(threads_per_rank(launch.ranks_on_host, launch.by_mpi)),
      stop_mpi_(stop_mpi) {}

int GangSession::run() {
    together(comm_, [&] {
        (void)parse_pass_tokens(options_.pass_tokens, comm_.size());
        if (!launch_.by_mpi) execution_ = resolve_execution(options_.device, options_.dtype);
        learn_models();
    });
    if (launch_.by_mpi) {
        execution_ = resolve_world_execution(options_.device, options_.dtype, comm_, launch_.local_rank);
    }
    connect();
    for (;;) {
        Order order;
        if (comm_.rank() == 0) order = next_order();
        broadcast(comm_, std::as_writable_bytes(std::span(&order, 1)));
        if (order.serve == 0) return order.code;
        serve(order.path.data());
    }
}

void GangSession::say_bye() {
    if (client_) client_->bye(end_reason_.empty() ? "its rank 0 ended" : end_reason_);
}

// ---- all ranks

/// Hashes of the models that this gang was given; the last one stays loaded.
void GangSession::learn_models() {
    for (const fs::path& path : options_.models) {
        model_ = Model::load(path);
        model_path_ = path;
        known_.emplace_back(model_->hash(), path);
    }
}

void GangSession::connect() {
    std::string id;
    std::string name = options_.name;
    if (comm_.rank() == 0) {
        std::random_device random;
        id = fmt::format("gang-{:08x}{:08x}", random(), random());
        if (name.empty()) name = fmt::format("{}-{}", host_name(), getpid());
    }
    id = broadcast_text<40>(comm_, id);
    name = broadcast_text<200>(comm_, name);

    const Address coordinator = parse_address(options_.coordinator, "--coordinator");
    ControlOptions control;
    control.host = coordinator.host;
    control.port = std::to_string(coordinator.port);
    control.tls_authority = options_.tls_authority;
    control.tls_certificate = options_.tls_certificate;
    control.tls_key = options_.tls_key;
    control.reconnect_seconds = options_.reconnect_seconds;
    control.hello.controlVersion = idl::g_fenwick_constants.CONTROL_VERSION;
    control.hello.build = fmt::format("{} {}", build_info::kVersion, build_info::kCommit);
    control.hello.gangId = id;
    control.hello.gangName = name;
    control.hello.rank = comm_.rank();
    control.hello.worldSize = comm_.size();
    control.hello.host = host_name();
    control.hello.pid = getpid();
    control.hello.device = execution_.device;
    control.hello.dtype = execution_.dtype;
    for (const auto& [hash, path] : known_) control.hello.modelHashes.push_back(hash);
    together(comm_, [&] {
        control.hello.token = read_token(options_);
        client_ = std::make_unique<ControlClient>(std::move(control), stop_mpi_);
        client_->connect();
    });
    if (comm_.rank() == 0) {
        spdlog::info("gang {} ({}): {} ranks, {} {}, serves {}", name, id, comm_.size(), execution_.device,
                     execution_.dtype, options_.coordinator);
    }
    client_->set_step("idle");
}

/// Why `path` cannot be served, if so.
std::optional<std::string> GangSession::load_model(const fs::path& path) {
    try {
        together(comm_, [&] {
            if (model_ == nullptr || model_path_ != path) {
                model_.reset();  // before the next one comes: both may not fit
                model_ = Model::load(path);
                model_path_ = path;
            }
            if (comm_.rank() == 0 && model_->hash() != grant_->modelHash) {
                throw DataError(fmt::format("{}: the job's model has hash {}, this gang's has {}", path.string(),
                                            grant_->modelHash, model_->hash()));
            }
        });
        check_same_model(comm_, *model_);
    } catch (const Error& error) {
        // Every rank comes here, or none: `together` saw to that.
        client_->check_stop();
        return error.what();
    }
    return std::nullopt;
}

void GangSession::serve(const fs::path& path) {
    if (const std::optional<std::string> fault = load_model(path)) {
        if (comm_.rank() == 0) {
            spdlog::error("the model cannot be served: {}", *fault);
            refuse_grant(*fault);
        }
        return;
    }
    client_->set_step("serving");
    execution_.gpu_pass_tokens = 0;  // another model
    if (execution_.on_gpu() && options_.pass_tokens.empty()) {
        execution_.gpu_pass_tokens = world_pass_tokens(comm_, *model_, execution_);
    }
    const std::int64_t pass_tokens = resolve_pass_tokens(options_.pass_tokens, execution_, comm_.size(), *model_);
    run_gang(model_, comm_, threads_, execution_.compute(), [&](LedGang& gang) {
        const ScratchFolder work = make_work_folder();
        lead(gang, {pass_tokens, options_.state_folder, work.path()});
    });
}

// ---- rank 0

void GangSession::end_with(ExitCode code, const std::string& reason) {
    end_ = code;
    end_reason_ = reason;
    spdlog::info("the gang ends: {}", reason);
}

/// Waits for a lease. The lease is kept for `lead` when its model is to be loaded first.
GangSession::Order GangSession::next_order() {
    if (!grant_) wait_for_grant();
    Order order;
    if (!grant_) {
        order.code = static_cast<std::int32_t>(*end_);
        return order;
    }
    const std::string path = path_of(*grant_).string();
    if (path.size() >= order.path.size()) throw InternalError("a model's path is too long: " + path);
    order.serve = 1;
    path.copy(order.path.data(), order.path.size() - 1);
    return order;
}

fs::path GangSession::path_of(const idl::Grant& grant) const {
    for (const auto& [hash, path] : known_) {
        if (hash == grant.modelHash) return path;
    }
    return grant.modelPath;
}

/// Sets `grant_`, or `end_` when the gang is to end.
void GangSession::wait_for_grant() {
    client_->set_step("idle");
    const Clock::time_point idle_since = Clock::now();
    std::uint64_t asked = 0;  // the session in which Ready was said
    while (!grant_ && !end_) {
        client_->check_stop();
        if (const char* signal = stop_requested(); signal != nullptr) {
            end_with(ExitCode::kInterrupted, fmt::format("it got {}", signal));
        } else if (client_->drain_requested()) {
            end_with(ExitCode::kDone, "it was drained");
        } else {
            look_for_grant(asked);
            const double idle = std::chrono::duration<double>(Clock::now() - idle_since).count();
            if (!grant_ && options_.exit_when_idle >= 0 && idle > options_.exit_when_idle) {
                end_with(ExitCode::kDone, fmt::format("it was idle for {:.0f} s", idle));
            }
        }
    }
}

void GangSession::look_for_grant(std::uint64_t& asked) {
    const std::uint64_t session = client_->session();
    if (session == 0) {
        std::this_thread::sleep_for(kLook);
        return;
    }
    try {
        if (session != asked) client_->send(session, as_message(idl::Ready()));
        asked = session;
        const auto message = client_->receive(session, kLook);
        if (message && message->__isset.grant) {
            grant_ = message->grant;
            grant_session_ = session;
        }
    } catch (const ConnectionLost&) {
        asked = 0;
    }
}

void GangSession::refuse_grant(const std::string& why) {
    idl::GiveBack back;
    back.lease = grant_->lease;
    back.reason = idl::ReturnReason::REFUSED;
    back.position = grant_->first;
    back.message = why;
    try {
        client_->send(grant_session_, as_message(back));
    } catch (const ConnectionLost&) {  // NOLINT(bugprone-empty-catch): then the lease is over as well
    }
    grant_.reset();
}

/// All leases of this model, one after the other.
void GangSession::lead(LedGang& gang, const LeaseSettings& settings) {
    Resident resident;
    while (grant_ && grant_->modelHash == model_->hash()) {
        try {
            LeaseRun run(gang, *client_, grant_session_, *grant_, settings);
            resident = run.run(resident);
        } catch (const ConnectionLost& lost) {
            // The coordinator has taken the lease back: it goes on from the last save point, here or elsewhere.
            spdlog::warn("{}: {}; its lease is over", grant_->customId, lost.what());
            resident = {};
        }
        grant_.reset();
        wait_for_grant();
    }
}

}  // namespace fenwick
