#include "kernels/cuda/activations.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int kCount>
__global__ void swiglu_kernel(T* gate, const T* up, std::int64_t stride, std::int64_t columns) {
    const std::int64_t first = blockIdx.x * stride;
    for (std::int64_t c = threadIdx.x * kCount; c < columns; c += kThreads * kCount) {
        Values<kCount> g = load_values<kCount>(gate + first + c);
        const Values<kCount> u = load_values<kCount>(up + first + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) g.at[i] = silu_for<T>(g.at[i]) * u.at[i];
        store_values<kCount>(gate + first + c, g);
    }
}

}  // namespace

void swiglu(Operand operand, void* gate, const void* up, std::int64_t stride, std::int64_t rows, std::int64_t columns,
            cudaStream_t stream) {
    if (rows == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = columns % 4 == 0 && fours(gate, stride, sizeof(T)) && fours(up, stride, sizeof(T));
        const auto kernel = wide ? swiglu_kernel<T, 4> : swiglu_kernel<T, 1>;
        kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(static_cast<T*>(gate), static_cast<const T*>(up),
                                                                     stride, columns);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

}  // namespace fenwick::cuda
