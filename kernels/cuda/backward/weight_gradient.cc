#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/cuda/check.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_plans.h"

namespace fenwick::cuda {
namespace {

std::int64_t element_bytes(Operand operand) {
    return operand == Operand::kBf16 ? 2 : 4;
}

std::int64_t whole_blocks(std::int64_t rows) {
    return (rows + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}

std::string request_text(const WeightGradientCall& call) {
    return fmt::format("a weight's gradient: rows {}, n {}, k {}, strides {} and {}, {} operands", call.rows, call.n,
                       call.k, call.dy_stride, call.x_stride, name_of(call.operand));
}

void clear_tail(const WeightGradientCall& call, void* rows, std::int64_t stride, std::int64_t columns,
                cudaStream_t stream) {
    const std::int64_t tail = whole_blocks(call.rows) - call.rows;
    if (tail == 0) return;
    const std::int64_t element = element_bytes(call.operand);
    FENWICK_CUDA_CHECK(cudaMemset2DAsync(
        static_cast<char*>(rows) + call.rows * stride * element, static_cast<std::size_t>(stride * element), 0,
        static_cast<std::size_t>(columns * element), static_cast<std::size_t>(tail), stream));
}

}  // namespace

Matmul::WeightPlan& Matmul::plan_for(const WeightGradientCall& call) {
    const WeightKey key{call.operand,
                        call.rows,
                        call.n,
                        call.k,
                        call.dy_stride,
                        call.x_stride,
                        alignment_of(call.dy),
                        alignment_of(call.x),
                        alignment_of(call.d_weight)};
    std::unique_ptr<WeightPlan>& found = weight_plans_[key];
    if (found != nullptr) return *found;
    const std::string request = request_text(call);
    auto plan = std::make_unique<WeightPlan>();
    make_description(plan->description, false, true, request);
    make_layout(plan->x, call.operand, call.k, call.rows, call.x_stride, request);
    make_layout(plan->dy, call.operand, call.n, call.rows, call.dy_stride, request);
    make_layout(plan->d_weight, Operand::kFp32, call.k, call.n, call.k, request);
    plan->algorithm = choose_algorithm(handle_, plan->description, plan->x, plan->dy, plan->d_weight,
                                       {key.x_alignment, key.dy_alignment, key.d_weight_alignment, false}, request);
    found = std::move(plan);
    return *found;
}

void Matmul::add_weight_gradient(const WeightGradientCall& call, void* workspace, cudaStream_t stream) {
    if (call.rows == 0 || call.n == 0 || call.k == 0) return;
    clear_tail(call, call.dy, call.dy_stride, call.n, stream);
    clear_tail(call, call.x, call.x_stride, call.k, stream);
    const std::int64_t element = element_bytes(call.operand);
    const float one = 1.0F;
    for (std::int64_t first = 0; first < whole_blocks(call.rows); first += kGradientRows) {
        WeightGradientCall part = call;
        part.rows = std::min(kGradientRows, whole_blocks(call.rows) - first);
        part.dy = static_cast<char*>(call.dy) + first * call.dy_stride * element;
        part.x = static_cast<char*>(call.x) + first * call.x_stride * element;
        const WeightPlan& plan = plan_for(part);
        check_cublas(cublasLtMatmul(handle_, plan.description.get(), &one, part.x, plan.x.get(), part.dy, plan.dy.get(),
                                    &one, part.d_weight, plan.d_weight.get(), part.d_weight, plan.d_weight.get(),
                                    &plan.algorithm, workspace, kWorkspaceBytes, stream),
                     "product", request_text(part));
    }
}

}  // namespace fenwick::cuda
