#include "worker/cuda/device_nodes.h"

#include <bit>
#include <memory>

#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/summary.h"

namespace fenwick::cuda {

DeviceNodes::DeviceNodes(const MixerShape& shape, cudaStream_t stream)
    : shape_(shape), floats_(summary_floats(shape)), stream_(stream) {
    for (int bit = 0; bit < kPlannedBits; ++bit) slots_.emplace_back(floats_, stream_);
}

float* DeviceNodes::slot(int bit) {
    while (static_cast<int>(slots_.size()) <= bit) slots_.emplace_back(floats_, stream_);
    return slots_[static_cast<std::size_t>(bit)].data();
}

std::vector<EnteringNode> DeviceNodes::entering(std::int64_t blocks) const {
    std::vector<EnteringNode> nodes;
    for (const int bit : set_bits(blocks)) nodes.push_back({bit, slots_.at(static_cast<std::size_t>(bit)).data()});
    return nodes;
}

void DeviceNodes::append(std::int64_t blocks, const float* summaries, std::int64_t count, float* scratch) {
    for (std::int64_t i = 0; i < count; ++i) {
        const float* node = summaries + i * floats_;
        const int merges = std::countr_one(static_cast<std::uint64_t>(blocks + i));
        for (int bit = 0; bit < merges; ++bit) {
            // Nodes on the way up alternate between two places; the last one goes where it stays.
            float* out = bit + 1 == merges ? slot(merges) : scratch + bit % 2 * floats_;
            combine_summaries(shape_, slot(bit), node, out, stream_);
            node = out;
        }
        if (merges > 0) continue;
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(slot(0), node, static_cast<std::size_t>(floats_) * sizeof(float),
                                           cudaMemcpyDeviceToDevice, stream_));
    }
}

NodeSummaries DeviceNodes::download(std::int64_t blocks) const {
    std::vector<Summary> summaries;
    for (const EnteringNode& node : entering(blocks)) {
        auto summary = std::make_shared<Buffer<float>>(floats_);
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(summary->data(), node.summary,
                                           static_cast<std::size_t>(floats_) * sizeof(float), cudaMemcpyDeviceToHost,
                                           stream_));
        summaries.push_back(std::move(summary));
    }
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream_));
    return {floats_, {0, blocks}, std::move(summaries)};
}

void DeviceNodes::upload(const NodeSummaries& nodes) {
    for (std::int64_t i = 0; i < nodes.size(); ++i) {
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(slot(nodes.node(i).bit), nodes.values(i),
                                           static_cast<std::size_t>(floats_) * sizeof(float), cudaMemcpyHostToDevice,
                                           stream_));
    }
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

}  // namespace fenwick::cuda
