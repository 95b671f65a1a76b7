// Ranks that are processes, started by mpirun or srun. <mpi.h> stays behind this header.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "parallel/communicator.h"
#include "parallel/world_guard.h"

namespace fenwick {

/// True when a launcher that speaks PMI or PMIx started this process as one rank of a world. A plain start gives false
/// and must not touch MPI. Pure: looks at the environment only.
[[nodiscard]] bool launched_under_mpi(const EnvironmentReader& read = process_environment);

/// MPI_Init_thread in the constructor, MPI_Finalize in the destructor. One a process, made by main() before any
/// MpiCommunicator and destroyed after all of them. When it is destroyed by an exception that passes, the world cannot
/// end in order (the peers may wait for this rank): it is aborted.
class MpiEnvironment {
public:
    /// Throws UnavailableError when MPI cannot start or cannot be used by one thread at a time.
    MpiEnvironment();
    ~MpiEnvironment();
    MpiEnvironment(const MpiEnvironment&) = delete;
    MpiEnvironment& operator=(const MpiEnvironment&) = delete;

private:
    int exceptions_;
};

struct MpiOptions {
    /// Longest wait inside one `exchange`; none: for ever.
    std::optional<std::chrono::milliseconds> timeout;
    /// Larger messages travel in parts of at most this many bytes (MPI counts are 32-bit). Equal on all ranks.
    std::int64_t part_bytes = std::int64_t{1} << 30;
    /// Set by another thread: `exchange` gives up at once. Outlives the communicator.
    const std::atomic<bool>* stop = nullptr;
};

/// A private copy of MPI_COMM_WORLD (collective to make and to destroy). `exchange` throws UnavailableError naming the
/// awaited ranks when the timeout passes, or when it is told to stop; after any error of `exchange` the only use left
/// is `abort`, which logs this rank, its step and the reason and ends all processes of the world with the code: an MPI
/// world cannot go on without a rank. Other threads may call MPI at the same time if they hold the mutex of
/// mpi_calls.h, as MpiMonitor does.
class MpiCommunicator final : public Communicator {
public:
    /// Throws UnavailableError when MPI refuses, UsageError for impossible options.
    explicit MpiCommunicator(MpiOptions options = {});
    ~MpiCommunicator() override;
    MpiCommunicator(const MpiCommunicator&) = delete;
    MpiCommunicator& operator=(const MpiCommunicator&) = delete;

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }
    [[nodiscard]] std::string name() const override { return "mpi"; }
    void exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) override;
    void abort(const std::string& reason, ExitCode code) noexcept override;

    /// Collective, before an MpiMonitor watches. Number of this rank among those of its host, from 0 (MPI's
    /// shared-memory domain): its local rank.
    [[nodiscard]] int local_rank() const;

private:
    struct Handle;  ///< the MPI communicator
    class Group;    ///< the requests of one `exchange`
    std::unique_ptr<Handle> handle_;
    MpiOptions options_;
    int rank_ = 0;
    int size_ = 1;
};

}  // namespace fenwick
