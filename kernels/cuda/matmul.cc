#include "kernels/cuda/matmul.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "core/cuda/check.h"
#include "core/fenwick.h"

namespace fenwick::cuda {
namespace {

/// The row blocks of a document are a batch of equal products; the algorithm is chosen for this many and used for all.
constexpr int kPlannedBlocks = 16;

const char* name_of(Operand operand) {
    return operand == Operand::kBf16 ? "bf16" : "fp32";
}

cudaDataType_t type_of(Operand operand) {
    return operand == Operand::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
}

std::string request_text(const MatmulCall& call) {
    return fmt::format("rows {}, n {}, k {}, strides {} and {}, {} operands, {} output{}", call.rows, call.n, call.k,
                       call.x_stride, call.y_stride, name_of(call.operand), name_of(call.output),
                       call.accumulate ? ", accumulated" : "");
}

void check(cublasStatus_t status, const char* what, const std::string& request) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw UnavailableError(fmt::format("matmul: {} failed: {} ({})", what, cublasLtGetStatusName(status), request));
}

/// Owns one of cuBLASLt's descriptors.
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
public:
    Owned() = default;
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() {
        if (handle_ != nullptr) (void)kDestroy(handle_);
    }
    [[nodiscard]] Handle get() const { return handle_; }
    [[nodiscard]] Handle* address() { return &handle_; }

private:
    Handle handle_ = nullptr;
};

using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// A batch of column-major matrices, `batch_stride` elements apart.
void make_layout(Layout& layout, Operand type, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                 std::int64_t batch_stride, const std::string& request) {
    check(cublasLtMatrixLayoutCreate(layout.address(), type_of(type), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), leading),
          "layout", request);
    check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                           sizeof(batch_stride)),
          "layout", request);
}

void set_batch(const Layout& layout, std::int32_t count, const std::string& request) {
    check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
          "batch count", request);
}

/// True for an algorithm that sums each element in one chain of tiles.
bool sums_in_one_chain(const cublasLtMatmulAlgo_t& algorithm) {
    std::int32_t split = 1;
    std::uint32_t reduction = 0;
    std::size_t written = 0;
    (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof(split),
                                               &written);
    (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                               sizeof(reduction), &written);
    return split <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

/// The largest power of two, up to what cuBLASLt asks for, that divides the address.
std::uint32_t alignment_of(const void* data) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    std::uint32_t alignment = 256;
    while (address % alignment != 0) alignment /= 2;
    return alignment;
}

}  // namespace

// In cuBLASLt's column-major words: Y^T [n, rows] = W [n, k] X^T [k, rows], with W stored as [k, n] and transposed.
struct Matmul::Plan {
    Description description;
    Layout weight, x, y;
    cublasLtMatmulAlgo_t algorithm{};
};

Matmul::Matmul() {
    check(cublasLtCreate(&handle_), "start of cuBLASLt", "no request yet");
}

Matmul::~Matmul() {
    plans_.clear();
    if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
}

Matmul::Plan& Matmul::plan_for(const MatmulCall& call) {
    const Key key{call.operand,
                  call.output,
                  call.accumulate,
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
    check(cublasLtMatmulDescCreate(plan->description.address(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "description",
          request);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(plan->description.get(), CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof(transposed)),
          "description", request);
    make_layout(plan->weight, call.operand, call.k, call.n, call.k, 0, request);
    make_layout(plan->x, call.operand, call.k, kBlockTokens, call.x_stride, kBlockTokens * call.x_stride, request);
    make_layout(plan->y, call.output, call.n, kBlockTokens, call.y_stride, kBlockTokens * call.y_stride, request);
    for (const Layout* layout : {&plan->weight, &plan->x, &plan->y}) set_batch(*layout, kPlannedBlocks, request);

    Preference preference;
    check(cublasLtMatmulPreferenceCreate(preference.address()), "preference", request);
    const std::size_t workspace = kWorkspaceBytes;
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                               sizeof(workspace)),
          "preference", request);
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                               &reductions, sizeof(reductions)),
          "preference", request);
    // Of a column range only what its place gives may be asked for. A is the weight, B is x, C and D are y.
    const std::array<std::pair<cublasLtMatmulPreferenceAttributes_t, std::uint32_t>, 4> alignments = {{
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.weight_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.x_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.y_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.y_alignment},
    }};
    for (const auto& [attribute, bytes] : alignments) {
        check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &bytes, sizeof(bytes)), "preference",
              request);
    }
    std::array<cublasLtMatmulHeuristicResult_t, 8> results{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, plan->description.get(), plan->weight.get(), plan->x.get(), plan->y.get(), plan->y.get(),
        preference.get(), static_cast<int>(results.size()), results.data(), &count);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
        if (results[static_cast<std::size_t>(i)].state != CUBLAS_STATUS_SUCCESS) continue;
        if (!sums_in_one_chain(results[static_cast<std::size_t>(i)].algo)) continue;
        plan->algorithm = results[static_cast<std::size_t>(i)].algo;
        found = std::move(plan);
        return *found;
    }
    throw InternalError(
        fmt::format("matmul: cuBLASLt has no algorithm for {}: {}", request, cublasLtGetStatusName(status)));
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
    check(cublasLtMatmul(handle_, plan.description.get(), &one, call.weight, plan.weight.get(), call.x, plan.x.get(),
                         &beta, call.y, plan.y.get(), call.y, plan.y.get(), &plan.algorithm, workspace, kWorkspaceBytes,
                         stream),
          "product", request);
}

}  // namespace fenwick::cuda
