// Where a gang lives: thread ranks of this process, or the processes of an MPI world.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "core/errors.h"
#include "parallel/communicator.h"
#include "worker/gang.h"

namespace fenwick {

/// Another rank failed and tells why itself: this one only ends, with the same exit code.
class PeerFailed : public Error {
public:
    PeerFailed(ExitCode code, int rank) : Error(code, "rank " + std::to_string(rank) + " failed") {}
};

/// Rank 0's gang as the coordinator drives it. It remembers whether the gang itself broke, because a broken gang can
/// only be aborted, while a whole one can be told to finish.
class LedGang {
public:
    LedGang(std::shared_ptr<const Model> model, Communicator& comm, int threads, Compute compute)
        : gang_(std::move(model), comm, threads, compute) {}

    void begin_document() {
        guarded([&] { gang_.begin_document(); });
    }
    void score_pass(std::span<const std::int32_t> tokens, std::int64_t count, std::span<float> nll) {
        guarded([&] { gang_.score_pass(tokens, count, nll); });
    }
    void save_state(const std::filesystem::path& file) {
        guarded([&] { gang_.save_state(file); });
    }
    void restore_state(const std::filesystem::path& file) {
        guarded([&] { gang_.restore_state(file); });
    }
    /// Whether --resume would find progress of this job.
    void set_resumable(bool resumable) {
        guarded([&] { gang_.set_resumable(resumable); });
    }
    void finish() {
        guarded([&] { gang_.finish(); });
    }
    [[nodiscard]] bool broken() const { return broken_; }

private:
    template <class Call>
    void guarded(Call&& call) {
        broken_ = true;
        call();
        broken_ = false;
    }

    Gang gang_;
    bool broken_ = false;
};

using Lead = std::function<void(LedGang&)>;

/// Runs `lead` with a gang of `ranks` threads of this process, `threads` CPU threads each. Throws the first error that
/// any rank met; nobody is left waiting.
void run_thread_gang(const std::shared_ptr<const Model>& model, int ranks, int threads, Compute compute,
                     const Lead& lead);

/// The same over the world of `comm`, called by every rank: rank 0 runs `lead`, the others serve. An error of the gang
/// aborts the world: with its own exit code, or, where a peer was lost and progress is saved, with kInterrupted.
void run_gang(const std::shared_ptr<const Model>& model, Communicator& comm, int threads, Compute compute,
              const Lead& lead);

/// Runs this rank's part of the world of `comm`. What it throws is this rank's error alone: the world is aborted, as
/// run_gang says. What it returns is an error that all ranks know of, or nothing: it is thrown, and the world is whole.
void run_rank(Communicator& comm, const std::function<std::exception_ptr()>& part);

/// The same for `ranks` ranks that are threads of this process. Throws the first error that is more than PeerFailed.
void run_thread_parts(int ranks, const std::function<std::exception_ptr(Communicator&)>& part);

/// Does `step` on this rank and learns whether it went well on all of them. Where it failed, the lowest such rank
/// throws its error and the others PeerFailed with its code.
void together(Communicator& comm, const std::function<void()>& step);

}  // namespace fenwick
