// A gang: the ranks that work on one document together. Rank 0 leads (the coordinator drives it); the others serve.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "parallel/communicator.h"
#include "worker/model.h"
#include "worker/pass_runner.h"

namespace fenwick {

/// Rank 0's end of a gang. Every call is carried out by all ranks together; the followers sit in `serve_gang`.
class Gang {
public:
    /// `threads`: CPU threads that each rank may use. The model is shared by all thread ranks of a process.
    /// Throws UnavailableError when `compute` asks for a GPU that cannot be used.
    Gang(std::shared_ptr<const Model> model, Communicator& comm, int threads, Compute compute = {});
    ~Gang();
    Gang(const Gang&) = delete;
    Gang& operator=(const Gang&) = delete;

    /// Forgets the last document: the next pass starts at position 0 with empty states.
    void begin_document();

    /// Tokens of the current document that have passed.
    [[nodiscard]] std::int64_t position() const;

    /// Runs the next stretch of the document and returns the loss (nats, -log p) of every target in it.
    /// `tokens`: the stretch, then, unless the document ends with it, the one token after it (the last target).
    /// `count` (>= 1): tokens of the stretch; a multiple of kBlockTokens unless the document ends with it, and
    /// `tokens.size()` is `count` or `count + 1`. `nll` gets `tokens.size() - 1` values.
    void score_pass(std::span<const std::int32_t> tokens, std::int64_t count, std::span<float> nll);

    /// Writes what the rest of the document needs (DESIGN section 4, "Carrying on") to `file`, a safetensors file,
    /// whole or not at all. Only between passes, at a multiple of kBlockTokens.
    void save_state(const std::filesystem::path& file);
    /// Continues where `save_state` was called, on any number of ranks. Throws DataError for a file that is damaged or
    /// belongs to another model.
    void restore_state(const std::filesystem::path& file);

    /// Tells all ranks whether --resume would find progress: the code with which a broken world ends.
    void set_resumable(bool resumable);

    /// Lets the followers return from `serve_gang`. No call may follow.
    void finish();

private:
    class Rank;
    friend void serve_gang(std::shared_ptr<const Model> model, Communicator& comm, int threads, Compute compute);
    std::unique_ptr<Rank> rank_;
};

/// The other ranks' loop: does what rank 0's Gang asks until `finish`.
void serve_gang(std::shared_ptr<const Model> model, Communicator& comm, int threads, Compute compute = {});

}  // namespace fenwick
