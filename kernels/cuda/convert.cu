#include <algorithm>

#include "kernels/cuda/convert.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(std::int64_t count) {
    return static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, 1 << 16));
}

template <class From, class To>
__global__ void convert_kernel(const From* from, To* to, std::int64_t count) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
        to[i] = from_float<To>(to_float(from[i]));
    }
}

template <class T>
__global__ void add_bias_kernel(T* y, std::int64_t stride, const float* bias, std::int64_t columns) {
    T* row = y + blockIdx.x * stride;
    for (std::int64_t c = threadIdx.x; c < columns; c += kThreads) row[c] = from_float<T>(to_float(row[c]) + bias[c]);
}

}  // namespace

void to_operand(Operand operand, const float* from, void* to, std::int64_t count, cudaStream_t stream) {
    if (count == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        convert_kernel<<<blocks_for(count), kThreads, 0, stream>>>(from, static_cast<T*>(to), count);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

void from_operand(Operand operand, const void* from, float* to, std::int64_t count, cudaStream_t stream) {
    if (count == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        convert_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<const T*>(from), to, count);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

void add_bias(Operand operand, void* y, std::int64_t y_stride, const float* bias, std::int64_t rows,
              std::int64_t columns, cudaStream_t stream) {
    if (rows == 0 || columns == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        add_bias_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(static_cast<T*>(y), y_stride, bias,
                                                                              columns);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

void require_kernel_image() {
    cudaFuncAttributes attributes{};
    FENWICK_CUDA_CHECK(cudaFuncGetAttributes(&attributes, add_bias_kernel<float>));
}

}  // namespace fenwick::cuda
