// What a rank needs of its world: grouped point-to-point messages. Everything else is built from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/errors.h"
#include "parallel/world_status.h"

namespace fenwick {

/// One message of a group. `bytes` lives until `exchange` returns.
struct SendOp {
    int to = 0;
    std::span<const std::byte> bytes;
};
struct RecvOp {
    int from = 0;
    std::span<std::byte> bytes;
};

/// One rank's end of a world of `size()` ranks. Calls are collective in the sense that sends and receives must match
/// pairwise and in order between any two ranks. Not thread-safe: one thread per rank uses it.
class Communicator {
public:
    virtual ~Communicator() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    /// "self", "threads" or "mpi"; of a group, its world's.
    [[nodiscard]] virtual std::string name() const = 0;

    /// Executes all sends and receives as one group; no order among them is needed to avoid deadlock. A message to
    /// oneself is allowed. Sizes of a matching pair must agree. Messages past 2 GiB are allowed.
    /// Throws PeerLostError when a peer failed (its world was aborted) or is silent, InternalError on mismatched sizes.
    virtual void exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) = 0;

    /// Makes every rank that waits, or comes to wait, in `exchange` fail with PeerLostError naming this rank and
    /// `reason`. Called by whoever catches a rank's error. A world of processes ends with `code`.
    virtual void abort(const std::string& reason, ExitCode code) noexcept = 0;

    /// What this rank says of itself; whoever works on it keeps it up to date.
    [[nodiscard]] virtual WorldStatus& status() { return status_; }

private:
    WorldStatus status_;
};

/// Copies `bytes` of `root` to all ranks (binomial tree).
void broadcast(Communicator& comm, std::span<std::byte> bytes, int root = 0);

/// Waits until every rank has come here.
void barrier(Communicator& comm);

}  // namespace fenwick
