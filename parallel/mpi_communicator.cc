#include "parallel/mpi_communicator.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <thread>

#include "core/errors.h"
#include "parallel/mpi_calls.h"

namespace fenwick {
namespace {

using mpi::check;
using mpi::describe;
using mpi::log_unless_ok;

constexpr int kTag = 1;
using CallLock = std::lock_guard<std::timed_mutex>;

/// Short waits spin (a summary takes microseconds); long ones leave the core to others.
class BackOff {
public:
    void pause() {
        if (++polls_ <= kSpins) return;
        if (polls_ <= kSpins + kYields) {
            std::this_thread::yield();
            return;
        }
        std::this_thread::sleep_for(sleep_);
        sleep_ = std::min(2 * sleep_, std::chrono::microseconds(500));
    }

private:
    static constexpr int kSpins = 64;
    static constexpr int kYields = 256;
    int polls_ = 0;
    std::chrono::microseconds sleep_{10};
};

}  // namespace

bool launched_under_mpi(const EnvironmentReader& read) {
    // Open MPI's mpirun, PMIx launchers (also srun --mpi=pmix) and PMI-1/2 launchers (also srun --mpi=pmi2).
    return read("OMPI_COMM_WORLD_SIZE") || read("PMIX_RANK") || read("PMI_RANK");
}

MpiEnvironment::MpiEnvironment() : exceptions_(std::uncaught_exceptions()) {
    int initialized = 0;
    check(MPI_Initialized(&initialized), "MPI_Initialized");
    if (initialized != 0) throw InternalError("MPI was started twice in this process");
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED) {
        log_unless_ok(MPI_Finalize(), "MPI_Finalize");
        throw UnavailableError("this MPI library cannot be called from one thread at a time (MPI_THREAD_SERIALIZED)");
    }
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiEnvironment::~MpiEnvironment() {
    int finalized = 0;
    log_unless_ok(MPI_Finalized(&finalized), "MPI_Finalized");
    if (finalized != 0) return;
    if (std::uncaught_exceptions() > exceptions_) {
        log_unless_ok(MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::kUnavailable)), "MPI_Abort");
        return;
    }
    log_unless_ok(MPI_Finalize(), "MPI_Finalize");
}

struct MpiCommunicator::Handle {
    MPI_Comm comm = MPI_COMM_NULL;
};

/// Non-blocking sends and receives, waited for together. Whatever has not completed when an error passes is cancelled,
/// so that MPI forgets the caller's memory.
class MpiCommunicator::Group {
public:
    Group(MPI_Comm comm, const MpiOptions& options, int rank) : comm_(comm), options_(options), rank_(rank) {}
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group() {
        const CallLock lock(mpi::call_mutex());
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            if (requests_[i] == MPI_REQUEST_NULL) continue;
            if (parts_[i].receive) log_unless_ok(MPI_Cancel(&requests_[i]), "MPI_Cancel");
            if (requests_[i] != MPI_REQUEST_NULL) log_unless_ok(MPI_Request_free(&requests_[i]), "MPI_Request_free");
        }
    }

    void receive(const RecvOp& op) {
        for_parts(op.bytes.size(), [&](std::size_t offset, int count) {
            start({op.from, count, true});
            const CallLock lock(mpi::call_mutex());
            check(MPI_Irecv(op.bytes.data() + offset, count, MPI_BYTE, op.from, kTag, comm_, &requests_.back()),
                  "MPI_Irecv");
        });
    }

    void send(const SendOp& op) {
        for_parts(op.bytes.size(), [&](std::size_t offset, int count) {
            start({op.to, count, false});
            const CallLock lock(mpi::call_mutex());
            check(MPI_Isend(op.bytes.data() + offset, count, MPI_BYTE, op.to, kTag, comm_, &requests_.back()),
                  "MPI_Isend");
        });
    }

    void wait() {
        if (requests_.empty()) return;
        std::vector<MPI_Status> statuses(requests_.size());
        const auto begun = std::chrono::steady_clock::now();
        const auto count = static_cast<int>(requests_.size());
        BackOff back_off;
        for (int done = 0; done == 0;) {
            const int code = test_all(count, done, statuses);
            if (code == MPI_ERR_IN_STATUS) throw_first_error(statuses);
            check(code, "MPI_Testall");
            if (done != 0) break;
            if (options_.stop != nullptr && options_.stop->load()) {
                throw UnavailableError(fmt::format("rank {} was told to stop while it waited for others", rank_));
            }
            if (options_.timeout && std::chrono::steady_clock::now() - begun > *options_.timeout) throw_timeout();
            back_off.pause();
        }
        const CallLock lock(mpi::call_mutex());
        for (std::size_t i = 0; i < parts_.size(); ++i) {
            if (parts_[i].receive) check_size(statuses[i], parts_[i]);
        }
    }

private:
    struct Part {
        int peer = 0;
        int bytes = 0;
        bool receive = false;
    };

    int test_all(int count, int& done, std::vector<MPI_Status>& statuses) {
        const CallLock lock(mpi::call_mutex());
        return MPI_Testall(count, requests_.data(), &done, statuses.data());
    }

    template <class Each>
    void for_parts(std::size_t size, Each each) {
        const auto most = static_cast<std::size_t>(options_.part_bytes);
        std::size_t offset = 0;
        do {  // an empty message is a message too
            const std::size_t count = std::min(most, size - offset);
            each(offset, static_cast<int>(count));
            offset += count;
        } while (offset < size);
    }

    void start(const Part& part) {
        parts_.push_back(part);
        requests_.push_back(MPI_REQUEST_NULL);
    }

    void check_size(const MPI_Status& status, const Part& part) const {
        int bytes = 0;
        check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
        if (bytes == part.bytes) return;
        throw InternalError(
            fmt::format("rank {} sent {} bytes to rank {}, which expects {}", part.peer, bytes, rank_, part.bytes));
    }

    [[noreturn]] void throw_first_error(const std::vector<MPI_Status>& statuses) const {
        const CallLock lock(mpi::call_mutex());
        for (std::size_t i = 0; i < statuses.size(); ++i) {
            const int code = statuses[i].MPI_ERROR;
            if (code == MPI_SUCCESS || code == MPI_ERR_PENDING) continue;
            int error_class = code;
            check(MPI_Error_class(code, &error_class), "MPI_Error_class");
            if (error_class == MPI_ERR_TRUNCATE) {
                throw InternalError(fmt::format("rank {} sent more bytes to rank {} than the {} that it expects",
                                                parts_[i].peer, rank_, parts_[i].bytes));
            }
            throw PeerLostError(
                fmt::format("message between rank {} and rank {}: {}", rank_, parts_[i].peer, describe(code)));
        }
        throw UnavailableError("MPI_Testall: an error without a request");
    }

    /// MPI_Testall leaves all requests as they were until all are done: ask each one, to name only who is missing.
    [[noreturn]] void throw_timeout() {
        std::set<int> awaited;
        const CallLock lock(mpi::call_mutex());
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            int done = 0;
            check(MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE), "MPI_Test");
            if (done == 0) awaited.insert(parts_[i].peer);
        }
        throw PeerLostError(fmt::format("rank {} waited {} ms for rank(s) {}, which did not answer", rank_,
                                        options_.timeout->count(), fmt::join(awaited, ", ")));
    }

    MPI_Comm comm_;
    const MpiOptions& options_;
    int rank_;
    std::vector<MPI_Request> requests_;
    std::vector<Part> parts_;
};

MpiCommunicator::MpiCommunicator(MpiOptions options) : handle_(std::make_unique<Handle>()), options_(options) {
    if (options_.part_bytes < 1 || options_.part_bytes > (std::int64_t{1} << 30)) {
        throw UsageError(fmt::format("MPI part size: expected 1..2^30 bytes, found {}", options_.part_bytes));
    }
    check(MPI_Comm_dup(MPI_COMM_WORLD, &handle_->comm), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(handle_->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(handle_->comm, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(handle_->comm, &size_), "MPI_Comm_size");
}

MpiCommunicator::~MpiCommunicator() {
    // Freeing is collective: while an error passes the peers may be elsewhere, and the process is about to end.
    if (std::uncaught_exceptions() == 0) log_unless_ok(MPI_Comm_free(&handle_->comm), "MPI_Comm_free");
}

void MpiCommunicator::exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) {
    Group group(handle_->comm, options_, rank_);
    for (const RecvOp& recv : recvs) group.receive(recv);  // receives first: nothing then arrives unexpected
    for (const SendOp& send : sends) group.send(send);
    group.wait();
}

int MpiCommunicator::local_rank() const {
    MPI_Comm host = MPI_COMM_NULL;
    int place = 0;
    const CallLock lock(mpi::call_mutex());
    check(MPI_Comm_split_type(handle_->comm, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
    check(MPI_Comm_rank(host, &place), "MPI_Comm_rank");
    check(MPI_Comm_free(&host), "MPI_Comm_free");
    return place;
}

void MpiCommunicator::abort(const std::string& reason, ExitCode code) noexcept {
    try {
        const std::string next =
            code == ExitCode::kInterrupted ? "; progress is saved: run again with --resume to continue" : "";
        spdlog::error("rank {} of {}, {}: {}; ending the MPI world{}", rank_, size_, step_text(status().step()), reason,
                      next);
        spdlog::default_logger()->flush();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the world has to end, with or without its message
    }
    mpi::end_world(handle_->comm, static_cast<int>(code));
}

}  // namespace fenwick
