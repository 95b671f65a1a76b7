// Products of rows with a weight on the GPU, by cuBLASLt, in blocks of kBlockTokens rows (DESIGN section 4): one
// algorithm for each shape, chosen once and kept, without split-K, so that a row's value does not depend on how many
// rows there are.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <map>
#include <memory>

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// y [rows, n] = x [rows, k] weight^T (+ y when `accumulate`); weight [n, k], contiguous, the layout of nn.Linear.
/// x and y are read and written in whole blocks: their memory holds `rows` rounded up to kBlockTokens rows.
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
};

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

private:
    struct Key {
        Operand operand;
        Operand output;
        bool accumulate;
        std::int64_t n, k, x_stride, y_stride;
        std::uint32_t x_alignment, weight_alignment, y_alignment;  ///< bytes, at most 256
        auto operator<=>(const Key&) const = default;              // NOLINT(modernize-use-nullptr): a false finding
    };
    struct Plan;

    Plan& plan_for(const MatmulCall& call);

    cublasLtHandle_t handle_ = nullptr;
    std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace fenwick::cuda
