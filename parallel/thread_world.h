// P ranks in one process, one thread each.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "parallel/communicator.h"

namespace fenwick {

/// Makes the communicators of `size` ranks. They share the world's state and may outlive this object.
class ThreadWorld {
public:
    /// `timeout`: longest wait inside one `exchange` before it throws UnavailableError naming the awaited ranks;
    /// none: for ever. Throws UsageError unless size >= 1.
    explicit ThreadWorld(int size, std::optional<std::chrono::milliseconds> timeout = std::nullopt);
    ~ThreadWorld();
    ThreadWorld(const ThreadWorld&) = delete;
    ThreadWorld& operator=(const ThreadWorld&) = delete;

    [[nodiscard]] std::unique_ptr<Communicator> communicator(int rank) const;

    class State;  ///< what the ranks share; defined beside the implementation

private:
    std::shared_ptr<State> state_;
};

/// Runs `body` on `ranks` ranks, one thread each (rank 0 on the calling thread), and returns when all have returned.
/// The first rank whose body throws aborts the world; its error is thrown again here, and the others' errors, which
/// follow from it, are dropped. Throws UsageError unless ranks >= 1.
void run_thread_ranks(int ranks, const std::function<void(Communicator&)>& body,
                      std::optional<std::chrono::milliseconds> timeout = std::nullopt);

}  // namespace fenwick
