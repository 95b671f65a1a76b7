// The worker's GPU side as others see it. It is there in every build: where no CUDA kernels were built (no_gpu.cc),
// nothing can be used and the texts say so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/gpu_choice.h"
#include "worker/pass_runner.h"
#include "worker/training/training_engine.h"

namespace fenwick {

struct GpuStatus {
    bool built = false;   ///< this program has CUDA kernels
    bool usable = false;  ///< and a device that runs them
    std::string text;     ///< what was found
    std::string advice;   ///< what to do; empty when usable, or when there is nothing to be done
};

/// `open`: also asks every device for its free memory, which takes a moment. Does not throw.
[[nodiscard]] GpuStatus gpu_status(bool open);

/// The version of the library that joins several GPUs, "NCCL 2.28.9"; empty: this build has none.
[[nodiscard]] std::string gpu_collectives();

/// The GPU that the rank of this process takes by the rule of device_of_local_rank, or why it cannot have one.
[[nodiscard]] GpuFacts look_at_gpu(int local_rank);

/// Tokens of a pass that fit into the free memory of GPU number `device` beside the weights: a power of two of blocks,
/// 262,144 tokens at most. Throws UnavailableError when not even one block fits.
[[nodiscard]] std::int64_t gpu_pass_tokens(const Model& model, bool bf16, int device);

/// Collective where there are several ranks, which are then processes with a GPU each. One rank's prefill, weights on
/// its GPU. Throws UnavailableError when the GPU cannot be used, when its memory is too small, or for several ranks in
/// a build without NCCL; PeerLostError when peers fail.
[[nodiscard]] std::unique_ptr<PassRunner> make_gpu_prefill(std::shared_ptr<const Model> model, Communicator& comm,
                                                           const Compute& compute);

/// Collective where there are several ranks, as make_gpu_prefill. Training on this rank's GPU
/// (worker/training/training_engine.h); `ranks` are of `world`. Throws as make_gpu_prefill.
[[nodiscard]] std::unique_ptr<TrainingEngine> make_gpu_engine(const std::shared_ptr<Model>& model, Communicator& world,
                                                              const TrainingRanks& ranks,
                                                              const BackpropOptions& options, const Compute& compute);

}  // namespace fenwick
