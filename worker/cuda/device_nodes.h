// The complete nodes of a document's prefix on the GPU, for one layer: one for each set bit of the number of blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cuda/device_buffer.h"
#include "kernels/cuda/mixer.h"
#include "parallel/node_summaries.h"

namespace fenwick::cuda {

/// Bits for which memory is set aside from the start: documents of up to 2^14 blocks (67 million tokens) take no more
/// memory than short ones.
inline constexpr int kPlannedBits = 14;

class DeviceNodes {
public:
    DeviceNodes(const MixerShape& shape, cudaStream_t stream);

    /// The nodes of blocks [0, blocks), oldest first: what enters block `blocks`.
    [[nodiscard]] std::vector<EnteringNode> entering(std::int64_t blocks) const;

    /// Takes in the summaries [count][floats] of blocks [blocks, blocks + count) and merges siblings. `scratch`: two
    /// summaries.
    void append(std::int64_t blocks, const float* summaries, std::int64_t count, float* scratch);

    /// Copies of the nodes of blocks [0, blocks) on the host, and back. Both wait for the stream.
    [[nodiscard]] NodeSummaries download(std::int64_t blocks) const;
    void upload(const NodeSummaries& nodes);

private:
    float* slot(int bit);

    MixerShape shape_;
    std::int64_t floats_;
    cudaStream_t stream_;
    std::vector<DeviceBuffer<float>> slots_;  // by bit
};

}  // namespace fenwick::cuda
