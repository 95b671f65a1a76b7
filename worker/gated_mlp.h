// The channel-mixing half of a layer: x += (silu(x_n W_gate^T) * (x_n W_up^T)) W_down^T.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "worker/arena.h"
#include "worker/training/gradients.h"
#include "worker/training/parameters.h"
#include "worker/weights.h"

namespace fenwick {

class GatedMlp {
public:
    /// Reads gate_proj, up_proj and down_proj. `ratio` and `intermediate` as flash-linear-attention's GatedMLP reads
    /// them: without `intermediate` (0) it is hidden * ratio * 2 / 3, rounded up to a multiple of 256.
    GatedMlp(const WeightReader& weights, std::int64_t hidden, std::int64_t ratio, std::int64_t intermediate);

    [[nodiscard]] static std::int64_t intermediate_size(std::int64_t hidden, std::int64_t ratio);
    [[nodiscard]] double flops_per_token() const { return gate_up_.flops() + down_.flops(); }
    [[nodiscard]] std::int64_t intermediate() const { return down_.inputs; }
    [[nodiscard]] const Linear& gate_up() const { return gate_up_; }  ///< gate's outputs, then up's
    [[nodiscard]] const Linear& down() const { return down_; }

    /// residual += mlp(x), both [rows, hidden]; rows start at a block of the document.
    void forward(MatrixView<const float> x, MatrixView<float> residual, Arena& arena, int threads) const;

    /// Of forward: `x` as it was given, d_y the gradient of the sum. d_x [rows, hidden] = the gradient of x by the MLP
    /// alone; the weights' are added to.
    void backward(MatrixView<const float> x, MatrixView<const float> d_y, MatrixView<float> d_x, Gradients& gradients,
                  Arena& arena, int threads) const;

    /// gate_proj, up_proj and down_proj.
    void list_parameters(const ParameterList& list);

private:
    Linear gate_up_;  // gate's outputs, then up's
    Linear down_;
};

}  // namespace fenwick
