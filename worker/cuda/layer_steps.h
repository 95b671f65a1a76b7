// The steps of a layer on the GPU that prefill and training share (worker/token_mixer.h says how they follow each
// other). Everything is launched on one stream; nothing waits.
#pragma once

#include <cstdint>

#include "kernels/cuda/convolution.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/mixer.h"
#include "kernels/cuda/read_out.h"
#include "worker/cuda/gpu_model.h"
#include "worker/cuda/pass_memory.h"

namespace fenwick::cuda {

/// What the steps work with: `rows` rows, whose intermediates lie in `memory`.
struct LayerWork {
    const GpuModel& model;
    Matmul& matmul;
    const PassMemory& memory;
    cudaStream_t stream;
    std::int64_t rows;
};

/// Rows of the operand type, `stride` elements apart.
class OperandRows {
public:
    OperandRows(void* data, std::int64_t stride, Operand operand)
        : data_(static_cast<unsigned char*>(data)), stride_(stride), element_(operand == Operand::kBf16 ? 2 : 4) {}
    /// From column `first` on.
    [[nodiscard]] void* column(std::int64_t first) const { return data_ + first * element_; }
    [[nodiscard]] void* row(std::int64_t first) const { return data_ + first * stride_ * element_; }
    [[nodiscard]] void* at(std::int64_t row, std::int64_t column) const {
        return data_ + (row * stride_ + column) * element_;
    }
    [[nodiscard]] std::int64_t stride() const { return stride_; }
    [[nodiscard]] std::int64_t row_bytes() const { return stride_ * element_; }

private:
    unsigned char* data_;
    std::int64_t stride_;
    std::int64_t element_;
};

/// The same places from row `first` on.
[[nodiscard]] PassMemory memory_from(const LayerWork& work, const GpuLayer& layer, std::int64_t first);

[[nodiscard]] OperandRows projected_rows(const LayerWork& work, const GpuLayer& layer);
[[nodiscard]] OperandRows convolved_rows(const LayerWork& work, const GpuLayer& layer);

/// memory.normed -> columns [first, first + columns) of memory.projected.
void project_columns(const LayerWork& work, const GpuLayer& layer, std::int64_t first, std::int64_t columns);
/// memory.normed -> memory.gates.
void project_gates(const LayerWork& work, const GpuLayer& layer);
/// The columns that only the read-out needs.
void project_rest(const LayerWork& work, const GpuLayer& layer);

/// memory.gates become time steps (or beta) and log decays, in place; Mamba-2's log decays go to memory.log_decay.
void prepare_gates(const LayerWork& work, const GpuLayer& layer);
/// Log decays that `prepare_gates` left, [rows, heads], and their stride.
struct LogDecays {
    float* data = nullptr;
    std::int64_t stride = 0;
};
[[nodiscard]] LogDecays log_decays(const LayerWork& work, const GpuLayer& layer);

/// projected -> convolved and, for Mamba-2, v. Of all rows, with memory.halo before them.
[[nodiscard]] ConvolutionCall convolution_call(const LayerWork& work, const GpuLayer& layer);

/// After gates and convolution: what is left to be done in place, and where the mixer's inputs lie then.
[[nodiscard]] MixerInputs mixer_inputs(const LayerWork& work, const GpuLayer& layer);

/// Of all rows, without `o`.
[[nodiscard]] ReadOut read_out_call(const LayerWork& work, const GpuLayer& layer);

/// memory.x += y weight^T (+ bias) for `rows` rows from `first` on; y's row 0 is row `first`, its rows `stride` apart.
void add_product(const LayerWork& work, const GpuLinear& linear, const void* y, std::int64_t stride, std::int64_t first,
                 std::int64_t rows);

/// memory.x += mlp(norm(memory.x)); memory.normed and memory.wide are overwritten.
void run_mlp(const LayerWork& work, const GpuLayer& layer);

}  // namespace fenwick::cuda
