// Products of rows with a weight on the GPU, by cuBLASLt, in blocks of kBlockTokens rows (DESIGN section 4): one
// algorithm for each shape, chosen once and kept, without split-K, so that a row's value does not depend on how many
// rows there are.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <map>
#include <memory>

#include "core/fenwick.h"
#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// y [rows, n] = x [rows, k] weight^T (+ y when `accumulate`); weight [n, k], contiguous, the layout of nn.Linear. With
/// `weight_by_inputs` y = x weight, weight [k, n]: the gradient of a layer's input from that of its output. x and y are
/// read and written in whole blocks: their memory holds `rows` rounded up to kBlockTokens rows.
struct MatmulCall {
    Operand operand = Operand::kBf16;  ///< of x and weight
    Operand output = Operand::kBf16;   ///< of y
    const void* x = nullptr;
    const void* weight = nullptr;
    void* y = nullptr;
    std::int64_t rows = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::int64_t x_stride = 0;
    std::int64_t y_stride = 0;
    bool accumulate = false;
    bool weight_by_inputs = false;
};

/// d_weight [n, k] += dy^T x, in fp32: dy [rows, n], x [rows, k] of the operand type. Memory of dy and x holds whole
/// blocks of rows; those behind `rows` are set to 0.
struct WeightGradientCall {
    Operand operand = Operand::kBf16;
    void* dy = nullptr;
    void* x = nullptr;
    float* d_weight = nullptr;  ///< contiguous
    std::int64_t rows = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::int64_t dy_stride = 0;
    std::int64_t x_stride = 0;
};

inline constexpr std::int64_t kGradientRows = 4 * kBlockTokens;  ///< most rows of one product of a weight's gradient

class Matmul {
public:
    static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20U;

    /// Throws UnavailableError when cuBLASLt cannot be started.
    Matmul();
    ~Matmul();
    Matmul(const Matmul&) = delete;
    Matmul& operator=(const Matmul&) = delete;

    /// fp32 operands are multiplied in fp32, not in TF32. `workspace`: kWorkspaceBytes on the device, 256-byte aligned.
    /// Throws InternalError (the message prints the request) when no algorithm takes the shape, UnavailableError when
    /// cuBLASLt fails.
    void multiply(const MatmulCall& call, void* workspace, cudaStream_t stream);

    /// kGradientRows rows at a time, in order, each part a product with fp32 sums that is added to d_weight: rows alone
    /// decide the order. Errors as multiply's.
    void add_weight_gradient(const WeightGradientCall& call, void* workspace, cudaStream_t stream);

private:
    struct Key {
        Operand operand;
        Operand output;
        bool accumulate;
        bool weight_by_inputs;
        std::int64_t n, k, x_stride, y_stride;
        std::uint32_t x_alignment, weight_alignment, y_alignment;  ///< bytes, at most 256
        auto operator<=>(const Key&) const = default;              // NOLINT(modernize-use-nullptr): a false finding
    };
    struct Plan;
    struct WeightKey {
        Operand operand;
        std::int64_t rows, n, k, dy_stride, x_stride;
        std::uint32_t dy_alignment, x_alignment, d_weight_alignment;
        auto operator<=>(const WeightKey&) const = default;  // NOLINT(modernize-use-nullptr): a false finding
    };
    struct WeightPlan;

    Plan& plan_for(const MatmulCall& call);
    WeightPlan& plan_for(const WeightGradientCall& call);

    cublasLtHandle_t handle_ = nullptr;
    std::map<Key, std::unique_ptr<Plan>> plans_;
    std::map<WeightKey, std::unique_ptr<WeightPlan>> weight_plans_;
};

}  // namespace fenwick::cuda
