// What a rank needs of whatever computes its part of a pass: the CPU's Prefill, or the GPU's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/node_summaries.h"
#include "parallel/shard_plan.h"
#include "worker/model.h"

namespace fenwick {

/// Where and in which arithmetic a gang computes. The CPU has fp32 alone.
struct Compute {
    bool gpu = false;
    bool bf16 = false;
    int device = 0;                                 ///< CUDA's number of this rank's GPU
    std::chrono::milliseconds comm_timeout{30000};  ///< of messages between GPUs
};

/// What a layer carries from pass to pass.
struct LayerCarry {
    NodeSummaries nodes;      ///< complete nodes of the prefix; the same on every rank
    Buffer<float> conv_rows;  ///< [halo_rows, conv_channels] before the next pass; rank 0 alone
};

class PassRunner {
public:
    virtual ~PassRunner() = default;

    /// Forgets everything: the next pass starts a document.
    virtual void reset() = 0;

    /// Collective. Runs the pass `plan` (which starts where the last one ended) over this rank's tokens and gives the
    /// losses of `targets`, the tokens after each of the first targets.size() rows; there may be none.
    virtual void run_pass(const ShardPlan& plan, std::span<const std::int32_t> tokens,
                          std::span<const std::int32_t> targets, std::span<float> nll) = 0;

    /// What the layers carry, on the host: up to date after `collect_carries`, until the next pass. Whoever changes it
    /// tells so by `carries_changed`, with the tokens that have passed.
    [[nodiscard]] virtual std::vector<LayerCarry>& carries() = 0;
    virtual void collect_carries() = 0;
    virtual void carries_changed(std::int64_t position) = 0;

    [[nodiscard]] virtual const Model& model() const = 0;
};

/// `threads`: CPU threads of this rank. Throws UnavailableError when `compute` asks for a GPU that cannot be used.
[[nodiscard]] std::unique_ptr<PassRunner> make_pass_runner(std::shared_ptr<const Model> model, Communicator& comm,
                                                           int threads, Compute compute);

}  // namespace fenwick
