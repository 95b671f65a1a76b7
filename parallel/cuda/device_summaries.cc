#include "parallel/cuda/device_summaries.h"

#include <fmt/format.h>

#include <bit>

#include "kernels/cuda/summary.h"

namespace fenwick::cuda {

void SummaryPool::reserve(std::int64_t floats, std::int64_t count) {
    DeviceBuffer<float>& slab = state_->memory.emplace_back(floats * count, state_->stream);
    for (std::int64_t i = 0; i < count; ++i) state_->free[floats].push_back(slab.data() + i * floats);
}

std::shared_ptr<SummaryBuffer> SummaryPool::allocate(std::int64_t floats) {
    std::int64_t size = floats;
    if (!state_->free.contains(size)) {
        size = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(floats)));
    }
    std::vector<float*>& pieces = state_->free[size];
    if (pieces.empty()) reserve(size, 1);
    float* piece = pieces.back();
    pieces.pop_back();
    std::shared_ptr<float> memory(piece, [state = state_, size](float* back) { state->free[size].push_back(back); });
    return std::make_shared<SummaryBuffer>(std::move(memory), floats);
}

void DeviceSummaries::copy(const float* from, std::int64_t floats, float* to) {
    FENWICK_CUDA_CHECK(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(floats) * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
}

void DeviceSummaries::combine_siblings(const float* children, std::int64_t pairs, std::int64_t /*floats*/, float* out) {
    combine_sibling_summaries(shape_, children, pairs, out, stream_);
}

void DeviceSummaries::combine(const float* left, const float* right, float* out) {
    combine_summaries(shape_, left, right, out, stream_);
}

void DeviceExchange::exchange(int round, std::span<const SendOp> sends, std::span<const RecvOp> recvs) {
    comm_.exchange({layer_, fmt::format("exchange, round {}", round)}, sends, recvs);
}

}  // namespace fenwick::cuda
