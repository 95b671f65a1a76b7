#include "kernels/cuda/matmul.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "core/fenwick.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/matmul_plans.h"

namespace fenwick::cuda {
namespace {

/// The row blocks of a document are a batch of equal products; the algorithm is chosen for this many and used for all.
constexpr int kPlannedBlocks = 16;

std::string request_text(const MatmulCall& call) {
    return fmt::format("rows {}, n {}, k {}, strides {} and {}, {} operands, {} output{}{}", call.rows, call.n, call.k,
                       call.x_stride, call.y_stride, name_of(call.operand), name_of(call.output),
                       call.accumulate ? ", accumulated" : "", call.weight_by_inputs ? ", weight by inputs" : "");
}

/// A batch of column-major matrices, `batch_stride` elements apart.
void make_batch(Layout& layout, Operand type, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                std::int64_t batch_stride, const std::string& request) {
    make_layout(layout, type, rows, columns, leading, request);
    check_cublas(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                  &batch_stride, sizeof(batch_stride)),
                 "layout", request);
}

void set_batch(const Layout& layout, std::int32_t count, const std::string& request) {
    check_cublas(
        cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
        "batch count", request);
}

}  // namespace

Matmul::Matmul() {
    check_cublas(cublasLtCreate(&handle_), "start of cuBLASLt", "no request yet");
}

Matmul::~Matmul() {
    plans_.clear();
    weight_plans_.clear();
    if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
}

Matmul::Plan& Matmul::plan_for(const MatmulCall& call) {
    const Key key{call.operand,
                  call.output,
                  call.accumulate,
                  call.weight_by_inputs,
                  call.n,
                  call.k,
                  call.x_stride,
                  call.y_stride,
                  alignment_of(call.x),
                  alignment_of(call.weight),
                  alignment_of(call.y)};
    std::unique_ptr<Plan>& found = plans_[key];
    if (found != nullptr) return *found;
    const std::string request = request_text(call);
    auto plan = std::make_unique<Plan>();
    make_description(plan->description, !call.weight_by_inputs, false, request);
    if (call.weight_by_inputs) {
        make_batch(plan->weight, call.operand, call.n, call.k, call.n, 0, request);
    } else {
        make_batch(plan->weight, call.operand, call.k, call.n, call.k, 0, request);
    }
    make_batch(plan->x, call.operand, call.k, kBlockTokens, call.x_stride, kBlockTokens * call.x_stride, request);
    make_batch(plan->y, call.output, call.n, kBlockTokens, call.y_stride, kBlockTokens * call.y_stride, request);
    for (const Layout* layout : {&plan->weight, &plan->x, &plan->y}) set_batch(*layout, kPlannedBlocks, request);
    plan->algorithm = choose_algorithm(handle_, plan->description, plan->weight, plan->x, plan->y,
                                       {key.weight_alignment, key.x_alignment, key.y_alignment, true}, request);
    found = std::move(plan);
    return *found;
}

void Matmul::multiply(const MatmulCall& call, void* workspace, cudaStream_t stream) {
    if (call.rows == 0) return;
    if (call.accumulate && call.output != Operand::kFp32) {
        throw InternalError("matmul: sums are kept in fp32: " + request_text(call));
    }
    Plan& plan = plan_for(call);
    const std::string request = request_text(call);
    const auto blocks = static_cast<std::int32_t>((call.rows + kBlockTokens - 1) / kBlockTokens);
    for (const Layout* layout : {&plan.weight, &plan.x, &plan.y}) set_batch(*layout, blocks, request);
    const float one = 1.0F;
    const float beta = call.accumulate ? 1.0F : 0.0F;
    check_cublas(cublasLtMatmul(handle_, plan.description.get(), &one, call.weight, plan.weight.get(), call.x,
                                plan.x.get(), &beta, call.y, plan.y.get(), call.y, plan.y.get(), &plan.algorithm,
                                workspace, kWorkspaceBytes, stream),
                 "product", request);
}

}  // namespace fenwick::cuda
