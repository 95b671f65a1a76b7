// The worker's GPU side as others see it. It is there in every build: where no CUDA kernels were built (no_gpu.cc),
// nothing can be used and the texts say so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/pass_runner.h"

namespace fenwick {

struct GpuStatus {
    bool built = false;   ///< this program has CUDA kernels
    bool usable = false;  ///< and a device that runs them
    std::string text;     ///< what was found
    std::string advice;   ///< what to do; empty when usable, or when there is nothing to be done
};

/// `open`: also asks every device for its free memory, which takes a moment. Does not throw.
[[nodiscard]] GpuStatus gpu_status(bool open);

/// Tokens of a pass that fit into the GPU's free memory beside the weights: a power of two of blocks, 262,144 tokens at
/// most. Throws UnavailableError when not even one block fits.
[[nodiscard]] std::int64_t gpu_pass_tokens(const Model& model, bool bf16);

/// The GPU's prefill of one rank, weights on the device. Throws UnavailableError when no GPU can be used, when its
/// memory is too small, or for a world of several ranks.
[[nodiscard]] std::unique_ptr<PassRunner> make_gpu_prefill(std::shared_ptr<const Model> model, const Communicator& comm,
                                                           bool bf16);

}  // namespace fenwick
