// cuBLASLt's descriptors as owners, shared by the products of matmul.h.
#pragma once

#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "core/errors.h"
#include "kernels/cuda/matmul.h"

namespace fenwick::cuda {

[[nodiscard]] inline const char* name_of(Operand operand) {
    return operand == Operand::kBf16 ? "bf16" : "fp32";
}

[[nodiscard]] inline cudaDataType_t type_of(Operand operand) {
    return operand == Operand::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
}

inline void check_cublas(cublasStatus_t status, const char* what, const std::string& request) {
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

/// fp32 sums; A and B transposed or as they lie.
inline void make_description(Description& description, bool transpose_a, bool transpose_b, const std::string& request) {
    check_cublas(cublasLtMatmulDescCreate(description.address(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "description",
                 request);
    const cublasOperation_t a = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_cublas(cublasLtMatmulDescSetAttribute(description.get(), CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a)),
                 "description", request);
    check_cublas(cublasLtMatmulDescSetAttribute(description.get(), CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b)),
                 "description", request);
}

/// A column-major matrix.
inline void make_layout(Layout& layout, Operand type, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                        const std::string& request) {
    check_cublas(cublasLtMatrixLayoutCreate(layout.address(), type_of(type), static_cast<std::uint64_t>(rows),
                                            static_cast<std::uint64_t>(columns), leading),
                 "layout", request);
}

/// The largest power of two, up to what cuBLASLt asks for, that divides the address.
[[nodiscard]] inline std::uint32_t alignment_of(const void* data) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    std::uint32_t alignment = 256;
    while (address % alignment != 0) alignment /= 2;
    return alignment;
}

/// What an algorithm is chosen by: the addresses' alignments, and how partial sums may meet.
struct AlgorithmWish {
    std::uint32_t a_alignment = 256;
    std::uint32_t b_alignment = 256;
    std::uint32_t c_alignment = 256;  ///< of C and D
    bool one_chain = true;            ///< each element is summed in one chain of tiles: no split-K
};

/// True for an algorithm that sums each element in one chain of tiles.
[[nodiscard]] inline bool sums_in_one_chain(const cublasLtMatmulAlgo_t& algorithm) {
    std::int32_t split = 1;
    std::uint32_t reduction = 0;
    std::size_t written = 0;
    (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof(split),
                                               &written);
    (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                               sizeof(reduction), &written);
    return split <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

/// The first algorithm that cuBLASLt offers for D = A B + beta C. Throws InternalError when there is none.
[[nodiscard]] inline cublasLtMatmulAlgo_t choose_algorithm(cublasLtHandle_t handle, const Description& description,
                                                           const Layout& a, const Layout& b, const Layout& c,
                                                           const AlgorithmWish& wish, const std::string& request) {
    Preference preference;
    check_cublas(cublasLtMatmulPreferenceCreate(preference.address()), "preference", request);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const void* value, std::size_t bytes) {
        check_cublas(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, value, bytes), "preference",
                     request);
    };
    const std::size_t workspace = Matmul::kWorkspaceBytes;
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    // Partial sums of a split meet in the workspace, in fp32 and in order: the same bits in every run.
    const std::uint32_t reductions =
        wish.one_chain ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
    // Of a column range only what its place gives may be asked for.
    const std::array<std::pair<cublasLtMatmulPreferenceAttributes_t, std::uint32_t>, 4> alignments = {{
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, wish.a_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, wish.b_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, wish.c_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, wish.c_alignment},
    }};
    for (const auto& [attribute, bytes] : alignments) set(attribute, &bytes, sizeof(bytes));
    std::array<cublasLtMatmulHeuristicResult_t, 8> results{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, description.get(), a.get(), b.get(), c.get(), c.get(), preference.get(),
                                       static_cast<int>(results.size()), results.data(), &count);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
        const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
        if (result.state != CUBLAS_STATUS_SUCCESS) continue;
        if (!wish.one_chain || sums_in_one_chain(result.algo)) return result.algo;
    }
    throw InternalError(
        fmt::format("matmul: cuBLASLt has no algorithm for {}: {}", request, cublasLtGetStatusName(status)));
}

}  // namespace fenwick::cuda
