// fenwick::cuda::Matmul by plain loops (OpenBLAS on fp32 copies): the same interface, whole blocks of rows read and
// written.
#include <cblas.h>

#include <vector>

#include "core/fenwick.h"
#include "cuda_on_host.h"
#include "kernels/cuda/matmul.h"
namespace fenwick::cuda {
struct Matmul::Plan {};
struct Matmul::WeightPlan {};
Matmul::Matmul() {}
Matmul::~Matmul() {}
namespace {
std::int64_t whole(std::int64_t rows) {
    return (rows + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}
std::vector<float> floats(Operand operand, const void* data, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride) {
    std::vector<float> out(static_cast<std::size_t>(rows * columns));
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
            out[r * columns + c] = operand == Operand::kBf16
                                       ? __bfloat162float(static_cast<const __nv_bfloat16*>(data)[r * stride + c])
                                       : static_cast<const float*>(data)[r * stride + c];
    return out;
}
}  // namespace
void Matmul::multiply(const MatmulCall& call, void*, cudaStream_t) {
    if (call.rows == 0) return;
    if (call.accumulate && call.output != Operand::kFp32) throw InternalError("matmul: sums are kept in fp32");
    const std::int64_t rows = whole(call.rows);
    const std::vector<float> x = floats(call.operand, call.x, rows, call.k, call.x_stride);
    const std::vector<float> w = call.weight_by_inputs ? floats(call.operand, call.weight, call.k, call.n, call.n)
                                                       : floats(call.operand, call.weight, call.n, call.k, call.k);
    std::vector<float> y(static_cast<std::size_t>(rows * call.n));
    cblas_sgemm(CblasRowMajor, CblasNoTrans, call.weight_by_inputs ? CblasNoTrans : CblasTrans, rows, call.n, call.k,
                1.0F, x.data(), call.k, w.data(), call.weight_by_inputs ? call.n : call.k, 0.0F, y.data(), call.n);
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < call.n; ++c) {
            const float value = y[r * call.n + c];
            if (call.output == Operand::kBf16)
                static_cast<__nv_bfloat16*>(call.y)[r * call.y_stride + c] = __float2bfloat16_rn(value);
            else {
                float& to = static_cast<float*>(call.y)[r * call.y_stride + c];
                to = call.accumulate ? to + value : value;
            }
        }
}
void Matmul::add_weight_gradient(const WeightGradientCall& call, void*, cudaStream_t stream) {
    if (call.rows == 0 || call.n == 0 || call.k == 0) return;
    const std::int64_t rows = whole(call.rows), e = call.operand == Operand::kBf16 ? 2 : 4;
    cudaMemset2DAsync(static_cast<char*>(call.dy) + call.rows * call.dy_stride * e, call.dy_stride * e, 0, call.n * e,
                      rows - call.rows, stream);
    cudaMemset2DAsync(static_cast<char*>(call.x) + call.rows * call.x_stride * e, call.x_stride * e, 0, call.k * e,
                      rows - call.rows, stream);
    for (std::int64_t first = 0; first < rows; first += kGradientRows) {
        const std::int64_t part = std::min(kGradientRows, rows - first);
        const std::vector<float> dy = floats(call.operand, static_cast<char*>(call.dy) + first * call.dy_stride * e,
                                             part, call.n, call.dy_stride);
        const std::vector<float> x =
            floats(call.operand, static_cast<char*>(call.x) + first * call.x_stride * e, part, call.k, call.x_stride);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, call.n, call.k, part, 1.0F, dy.data(), call.n, x.data(),
                    call.k, 1.0F, call.d_weight, call.k);
    }
}
}  // namespace fenwick::cuda
