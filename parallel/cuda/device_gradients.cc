#include "parallel/cuda/device_gradients.h"

#include "core/cuda/check.h"
#include "kernels/cuda/backward/summary.h"
#include "kernels/cuda/vectors.h"

namespace fenwick::cuda {

void DeviceSummaryGradients::zero(std::int64_t floats, float* to) {
    if (floats == 0) return;
    FENWICK_CUDA_CHECK(cudaMemsetAsync(to, 0, static_cast<std::size_t>(floats) * sizeof(float), stream_));
}

void DeviceSummaryGradients::add(const float* from, std::int64_t floats, float* to) {
    add_vector(from, to, floats, stream_);
}

void DeviceSummaryGradients::combine_backward(const float* left, const float* right, const float* d_out, float* d_left,
                                              float* d_right) {
    combine_summaries_backward(shape_, left, right, d_out, d_left, d_right, true, stream_);
}

void DeviceSummaryGradients::combine_siblings_backward(const float* children, const float* d_out, std::int64_t pairs,
                                                       std::int64_t floats, float* d_children) {
    for (std::int64_t i = 0; i < pairs; ++i) {
        const std::int64_t left = 2 * i * floats;
        combine_backward(children + left, children + left + floats, d_out + i * floats, d_children + left,
                         d_children + left + floats);
    }
}

}  // namespace fenwick::cuda
