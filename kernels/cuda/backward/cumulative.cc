#include "kernels/cuda/backward/cumulative.h"

#include <string>

#include "core/cuda/check.h"
#include "core/errors.h"
#include "kernels/cuda/scalar_plan.h"

namespace fenwick::cuda::backward {

void launch_cumulative(const Call& call, std::int64_t padded_rows, double* to) {
    scalar::Plan decay;
    decay.heads = call.shape.heads;
    decay.rows = call.inputs.rows;
    decay.blocks = padded_rows / kBlockTokens;
    decay.padded_rows = padded_rows;
    MixerCall forward;
    forward.shape = call.shape;
    forward.inputs = call.inputs;
    forward.workspace = to;
    forward.stream = call.stream;
    scalar::launch_decay(decay, forward);
}

void check_alignment(const Call& call) {
    const auto good = [](const void* p, std::int64_t stride) {
        return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && stride % 8 == 0;
    };
    const auto good_gradient = [](const float* p, std::int64_t stride) {
        return reinterpret_cast<std::uintptr_t>(p) % 8 == 0 && stride % 2 == 0;
    };
    const MixerInputs& in = call.inputs;
    const MixerGradients& g = call.gradients;
    if (!good_gradient(g.q, g.q_stride) || !good_gradient(g.k, g.k_stride) || !good_gradient(g.v, g.v_stride)) {
        throw InternalError(
            "mixer backward on the GPU: gradients of rows must start at multiples of 8 bytes; found strides of q, k, "
            "v " +
            std::to_string(g.q_stride) + ", " + std::to_string(g.k_stride) + ", " + std::to_string(g.v_stride));
    }
    if (good(in.q, in.q_stride) && good(in.k, in.k_stride) && good(in.v, in.v_stride) &&
        good(call.d_out, call.d_out_stride)) {
        return;
    }
    throw InternalError(
        "mixer backward on the GPU: bf16 rows must start at multiples of 16 bytes; found strides of q, k, v, "
        "d_out " +
        std::to_string(in.q_stride) + ", " + std::to_string(in.k_stride) + ", " + std::to_string(in.v_stride) + ", " +
        std::to_string(call.d_out_stride));
}

void launch_clear(float* data, std::int64_t stride, std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
    if (data == nullptr) return;
    FENWICK_CUDA_CHECK(cudaMemset2DAsync(data, static_cast<std::size_t>(stride) * sizeof(float), 0,
                                         static_cast<std::size_t>(columns) * sizeof(float),
                                         static_cast<std::size_t>(rows), stream));
}

}  // namespace fenwick::cuda::backward
