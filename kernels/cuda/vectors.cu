#include <algorithm>

#include "kernels/cuda/operand.h"
#include "kernels/cuda/vectors.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(std::int64_t count) {
    return static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, 1 << 16));
}

__device__ std::int64_t first_element() {
    return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

__device__ std::int64_t step() {
    return static_cast<std::int64_t>(gridDim.x) * kThreads;
}

__global__ void add_kernel(const float* from, float* to, std::int64_t count) {
    for (std::int64_t i = first_element(); i < count; i += step()) to[i] += from[i];
}

template <class T>
__global__ void add_rows_kernel(const float* x, std::int64_t x_stride, T* y, std::int64_t y_stride,
                                std::int64_t columns, std::int64_t count) {
    for (std::int64_t i = first_element(); i < count; i += step()) {
        const std::int64_t row = i / columns;
        const std::int64_t column = i % columns;
        T* to = y + row * y_stride + column;
        *to = from_float<T>(to_float(*to) + x[row * x_stride + column]);
    }
}

__global__ void sum_kernel(const float* part, std::int64_t stride, int parts, int own, const float* own_part,
                           float* out, std::int64_t count) {
    for (std::int64_t i = first_element(); i < count; i += step()) {
        double sum = 0.0;
        for (int p = 0; p < parts; ++p) {
            sum += static_cast<double>(p == own ? own_part[i] : part[p * stride + i]);
        }
        out[i] = static_cast<float>(sum);
    }
}

__global__ void set_kernel(std::int64_t* first, std::int64_t count) {
    *first = count;
}

// The least of them is the same in whatever order they are found.
__global__ void find_kernel(const float* values, std::int64_t count, std::int64_t* first) {
    for (std::int64_t i = first_element(); i < count; i += step()) {
        if (isfinite(values[i])) continue;
        atomicMin(reinterpret_cast<unsigned long long*>(first), static_cast<unsigned long long>(i));
        return;
    }
}

}  // namespace

void add_vector(const float* from, float* to, std::int64_t count, cudaStream_t stream) {
    if (count == 0) return;
    add_kernel<<<blocks_for(count), kThreads, 0, stream>>>(from, to, count);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void add_rows(Operand operand, const float* x, std::int64_t x_stride, void* y, std::int64_t y_stride, std::int64_t rows,
              std::int64_t columns, cudaStream_t stream) {
    const std::int64_t count = rows * columns;
    if (count == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        add_rows_kernel<<<blocks_for(count), kThreads, 0, stream>>>(x, x_stride, static_cast<T*>(y), y_stride, columns,
                                                                    count);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

void sum_parts(const float* part, std::int64_t stride, int parts, int own, const float* own_part, float* out,
               std::int64_t count, cudaStream_t stream) {
    if (count == 0) return;
    sum_kernel<<<blocks_for(count), kThreads, 0, stream>>>(part, stride, parts, own, own_part, out, count);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void find_not_finite(const float* values, std::int64_t count, std::int64_t* first, cudaStream_t stream) {
    set_kernel<<<1, 1, 0, stream>>>(first, count);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    if (count == 0) return;
    find_kernel<<<blocks_for(count), kThreads, 0, stream>>>(values, count, first);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
