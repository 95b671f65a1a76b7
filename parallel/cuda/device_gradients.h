// The exchange's gradients on a device: parallel/node_gradients.h with kernels and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/mixer_shape.h"
#include "parallel/node_gradients.h"

namespace fenwick::cuda {

/// Gradients of summaries of one shape, in a stream's order. Values of A that nothing reads (of nodes that start the
/// document) have to be finite all the same: they are multiplied by gradients that are 0.
class DeviceSummaryGradients final : public SummaryGradients {
public:
    DeviceSummaryGradients(const MixerShape& shape, cudaStream_t stream) : shape_(shape), stream_(stream) {}
    void zero(std::int64_t floats, float* to) override;
    void add(const float* from, std::int64_t floats, float* to) override;
    void combine_backward(const float* left, const float* right, const float* d_out, float* d_left,
                          float* d_right) override;
    void combine_siblings_backward(const float* children, const float* d_out, std::int64_t pairs, std::int64_t floats,
                                   float* d_children) override;

private:
    MixerShape shape_;
    cudaStream_t stream_;
};

}  // namespace fenwick::cuda
