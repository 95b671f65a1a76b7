#include "kernels/cuda/backward/bias.h"
#include "kernels/cuda/backward/column_sums.cuh"

namespace fenwick::cuda {
namespace {

template <class T>
struct BiasTerm {
    const T* dy;
    std::int64_t stride;

    __device__ void operator()(std::int64_t row, std::int64_t column, float* terms) const {
        terms[0] = to_float(dy[row * stride + column]);
    }
};

}  // namespace

std::size_t bias_backward_workspace_bytes(std::int64_t columns) {
    return column_sums_bytes(columns);
}

void bias_backward(Operand operand, const void* dy, std::int64_t dy_stride, float* d_bias, std::int64_t rows,
                   std::int64_t columns, void* workspace, cudaStream_t stream) {
    if (rows == 0 || columns == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        sum_columns<1>(BiasTerm<T>{static_cast<const T*>(dy), dy_stride}, rows, columns, workspace, stream);
        add_sums(workspace, rows, columns, {d_bias, columns, 0, 1, 1}, stream);
    });
}

}  // namespace fenwick::cuda
