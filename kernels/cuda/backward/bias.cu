#include "kernels/cuda/backward/bias.h"
#include "kernels/cuda/backward/column_sums.cuh"

namespace fenwick::cuda {
namespace {

template <class T, int kCount>
struct BiasTerm {
    const T* dy;
    std::int64_t stride;

    __device__ void operator()(std::int64_t row, std::int64_t item, float* terms) const {
        const Values<kCount> d = load_values<kCount>(dy + row * stride + item * kCount);
#pragma unroll
        for (int i = 0; i < kCount; ++i) terms[i] = d.at[i];
    }
};

}  // namespace

std::size_t add_bias_backward_workspace_bytes(std::int64_t columns) {
    return column_sums_bytes(columns);
}

void add_bias_backward(Operand operand, const void* dy, std::int64_t stride, float* d_bias, std::int64_t rows,
                       std::int64_t columns, void* workspace, cudaStream_t stream) {
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const T* from = static_cast<const T*>(dy);
        if (columns % 4 == 0 && fours(dy, stride, sizeof(T))) {
            sum_columns<4>(BiasTerm<T, 4>{from, stride}, rows, columns / 4, workspace, stream);
        } else {
            sum_columns<1>(BiasTerm<T, 1>{from, stride}, rows, columns, workspace, stream);
        }
        add_sums(workspace, rows, columns, {d_bias, columns}, stream);
    });
}

}  // namespace fenwick::cuda
