#include "coordinator/gang/gang_session.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <thread>

#include "coordinator/build_info.h"
#include "coordinator/control/rank_link.h"
#include "coordinator/gang/lease_run.h"
#include "coordinator/gang_host.h"
#include "coordinator/idl/fenwick_constants.h"
#include "coordinator/mpi_world.h"
#include "coordinator/score_options.h"
#include "coordinator/stop_signal.h"
#include "core/errors.h"
#include "core/files.h"
#include "parallel/mpi_communicator.h"
#include "parallel/self_communicator.h"
#include "parallel/world_guard.h"
#include "worker/model.h"

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

constexpr std::string_view kFolderPrefix = "fenwick-worker-";

/// Folders of processes of this host that were killed.
void remove_orphans(const fs::path& folder) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
        const std::string name = it->path().filename().string();
        if (!name.starts_with(kFolderPrefix)) continue;
        const std::string rest = name.substr(kFolderPrefix.size());
        pid_t pid = 0;
        const auto [end, wrong] = std::from_chars(rest.data(), rest.data() + rest.size(), pid);
        const bool gone = wrong == std::errc() && pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH;
        std::error_code ignored;  // somebody else's, or being removed by another gang
        if (gone) fs::remove_all(it->path(), ignored);
    }
}

/// A folder for states on their way, gone with the process, or with the next one when this one is killed.
class WorkFolder {
public:
    WorkFolder() {
        const fs::path parent = fs::temp_directory_path();
        remove_orphans(parent);
        std::string name = (parent / fmt::format("{}{}-XXXXXX", kFolderPrefix, getpid())).string();
        if (mkdtemp(name.data()) == nullptr) {
            throw UnavailableError(
                fmt::format("{}: cannot create: {}; TMPDIR chooses another place", name, std::strerror(errno)));
        }
        path_ = name;
    }
    ~WorkFolder() {
        std::error_code error;
        fs::remove_all(path_, error);
    }
    WorkFolder(const WorkFolder&) = delete;
    WorkFolder& operator=(const WorkFolder&) = delete;
    [[nodiscard]] const fs::path& path() const { return path_; }

private:
    fs::path path_;
};

std::string read_token(const WorkerOptions& options) {
    if (options.token_file.empty()) return options.token;
    std::string token = read_text_file(options.token_file, 4096);
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
    return token;
}

/// What rank 0 tells the others between two models.
struct Order {
    std::int32_t serve = 0;  ///< 1: load `path` and serve; 0: end with `code`
    std::int32_t code = 0;
    std::array<char, 4096> path = {};
};

class GangSession {
public:
    GangSession(const WorkerOptions& options, Communicator& comm, int ranks_on_host, bool launched,
                std::atomic<bool>* stop_mpi)
        : options_(options), comm_(comm), threads_(threads_per_rank(ranks_on_host, launched)), stop_mpi_(stop_mpi) {}

    int run() {
        together(comm_, [&] {
            (void)parse_pass_tokens(options_.pass_tokens, comm_.size());
            execution_ = resolve_execution(options_.device, options_.dtype, comm_.size());
            learn_models();
        });
        connect();
        for (;;) {
            Order order;
            if (comm_.rank() == 0) order = next_order();
            broadcast(comm_, std::as_writable_bytes(std::span(&order, 1)));
            if (order.serve == 0) return order.code;
            serve(order.path.data());
        }
    }

    void say_bye(const std::string& reason) {
        if (client_) client_->bye(reason);
    }
    [[nodiscard]] std::string end_reason() const { return end_reason_.empty() ? "its rank 0 ended" : end_reason_; }

private:
    /// Hashes of the models that this gang was given; the last one stays loaded.
    void learn_models() {
        for (const fs::path& path : options_.models) {
            model_ = Model::load(path);
            model_path_ = path;
            known_.emplace_back(model_->hash(), path);
        }
    }

    void connect() {
        std::array<char, 40> id = {};
        if (comm_.rank() == 0) {
            std::random_device random;
            fmt::format("gang-{:08x}{:08x}", random(), random()).copy(id.data(), id.size() - 1);
        }
        broadcast(comm_, std::as_writable_bytes(std::span(id)));
        std::array<char, 200> name = {};
        if (comm_.rank() == 0) {
            const std::string text =
                options_.name.empty() ? fmt::format("{}-{}", host_name(), getpid()) : options_.name;
            text.copy(name.data(), name.size() - 1);
        }
        broadcast(comm_, std::as_writable_bytes(std::span(name)));

        const std::size_t colon = options_.coordinator.rfind(':');
        ControlOptions control;
        control.host = options_.coordinator.substr(0, colon);
        control.port = options_.coordinator.substr(colon + 1);
        control.tls_authority = options_.tls_authority;
        control.tls_certificate = options_.tls_certificate;
        control.tls_key = options_.tls_key;
        control.reconnect_seconds = options_.reconnect_seconds;
        control.hello.controlVersion = idl::g_fenwick_constants.CONTROL_VERSION;
        control.hello.build = fmt::format("{} {}", build_info::kVersion, build_info::kCommit);
        control.hello.gangId = id.data();
        control.hello.gangName = name.data();
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
            spdlog::info("gang {} ({}): {} ranks, {} {}, serves {}", name.data(), id.data(), comm_.size(),
                         execution_.device, execution_.dtype, options_.coordinator);
        }
        client_->set_step("idle");
    }

    // ---- rank 0

    Order end_with(ExitCode code, const std::string& reason) {
        end_reason_ = reason;
        spdlog::info("the gang ends: {}", reason);
        Order order;
        order.code = static_cast<std::int32_t>(code);
        return order;
    }

    /// Waits for a lease. The lease is kept for `lead` when its model is to be loaded first.
    Order next_order() {
        if (!grant_) wait_for_grant();
        if (!grant_) return *end_;
        const fs::path path = path_of(*grant_);
        Order order;
        if (path.string().size() >= order.path.size())
            throw InternalError("a model's path is too long: " + path.string());
        order.serve = 1;
        path.string().copy(order.path.data(), order.path.size() - 1);
        return order;
    }

    fs::path path_of(const idl::Grant& grant) const {
        for (const auto& [hash, path] : known_) {
            if (hash == grant.modelHash) return path;
        }
        return grant.modelPath;
    }

    /// Sets `grant_`, or `end_` when the gang is to end.
    void wait_for_grant() {
        client_->set_step("idle");
        const Clock::time_point idle_since = Clock::now();
        std::uint64_t asked = 0;  // the session in which Ready was said
        while (!grant_ && !end_) {
            client_->check_stop();
            if (const char* signal = stop_requested(); signal != nullptr) {
                end_ = end_with(ExitCode::kInterrupted, fmt::format("it got {}", signal));
            } else if (client_->drain_requested()) {
                end_ = end_with(ExitCode::kDone, "it was drained");
            } else {
                look_for_grant(asked);
                const double idle = std::chrono::duration<double>(Clock::now() - idle_since).count();
                if (!grant_ && options_.exit_when_idle >= 0 && idle > options_.exit_when_idle) {
                    end_ = end_with(ExitCode::kDone, fmt::format("it was idle for {:.0f} s", idle));
                }
            }
        }
    }

    void look_for_grant(std::uint64_t& asked) {
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

    void refuse_grant(const std::string& why) {
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
    void lead(LedGang& gang, const LeaseSettings& settings) {
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

    // ---- all ranks

    void serve(const fs::path& path) {
        std::string fault;
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
            fault = error.what();
        }
        if (!fault.empty()) {
            if (comm_.rank() == 0) {
                spdlog::error("the model cannot be served: {}", fault);
                refuse_grant(fault);
            }
            return;
        }
        client_->set_step("serving");
        const std::int64_t pass_tokens = resolve_pass_tokens(options_.pass_tokens, execution_, comm_.size(), *model_);
        run_gang(model_, comm_, threads_, execution_.compute(), [&](LedGang& gang) {
            const WorkFolder work;
            lead(gang, {pass_tokens, options_.state_folder, work.path()});
        });
    }

    const WorkerOptions& options_;
    Communicator& comm_;
    int threads_;
    std::atomic<bool>* stop_mpi_;
    Execution execution_;
    std::shared_ptr<const Model> model_;
    fs::path model_path_;
    std::vector<std::pair<std::string, fs::path>> known_;
    std::unique_ptr<ControlClient> client_;
    std::optional<idl::Grant> grant_;
    std::uint64_t grant_session_ = 0;
    std::optional<Order> end_;
    std::string end_reason_;
};

int run_session(const WorkerOptions& options, Communicator& comm, int ranks_on_host, bool launched,
                std::atomic<bool>* stop_mpi) {
    guard_world(comm);
    if (comm.rank() != 0) spdlog::set_level(spdlog::level::err);
    GangSession session(options, comm, ranks_on_host, launched, stop_mpi);
    const int code = session.run();
    session.say_bye(session.end_reason());
    return code;
}

int run_under_mpi(const WorkerOptions& options) {
    std::atomic<bool> stop{false};
    int code = 0;
    std::exception_ptr error;
    {
        const MpiEnvironment environment;
        MpiCommunicator comm(MpiOptions{.timeout = std::nullopt, .stop = &stop});
        // Errors that every rank knows of leave the world whole: it is ended in order before they go on.
        try {
            code = run_session(options, comm, mpi_ranks_on_host(comm.size()), true, &stop);
        } catch (...) {
            error = std::current_exception();
        }
        // Told to stop, the ranks do not wait for each other any more: one of them may be dead.
        if (stop.load()) {
            comm.abort("the coordinator gave this gang up");
        }
    }
    if (error != nullptr) std::rethrow_exception(error);
    return code;
}

}  // namespace

int run_worker(const WorkerOptions& options) {
    const std::size_t colon = options.coordinator.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == options.coordinator.size()) {
        throw UsageError(fmt::format("--coordinator {}: expected HOST:PORT", options.coordinator));
    }
    if (!options.tls_certificate.empty() && (options.tls_authority.empty() || options.tls_key.empty())) {
        throw UsageError("--tls-certificate: needs --tls-ca and --tls-key, too");
    }
    catch_stop_signals();
    if (launched_under_mpi()) return run_under_mpi(options);
    SelfCommunicator self;
    std::atomic<bool> stop{false};
    return run_session(options, self, 1, false, &stop);
}

}  // namespace fenwick
