#include "worker/gated_mlp.h"

#include <algorithm>

#include "core/fenwick.h"
#include "kernels/activations.h"
#include "kernels/backward/activations.h"
#include "kernels/backward/matmul.h"
#include "kernels/matmul.h"

namespace fenwick {

std::int64_t GatedMlp::intermediate_size(std::int64_t hidden, std::int64_t ratio) {
    return (hidden * ratio * 2 / 3 + 255) / 256 * 256;
}

GatedMlp::GatedMlp(const WeightReader& weights, std::int64_t hidden, std::int64_t ratio, std::int64_t intermediate) {
    if (intermediate == 0) intermediate = intermediate_size(hidden, ratio);
    const Linear gate = weights.linear("gate_proj", intermediate, hidden);
    const Linear up = weights.linear("up_proj", intermediate, hidden);
    gate_up_ = stack_rows({&gate, &up});
    down_ = weights.linear("down_proj", hidden, intermediate);
}

void GatedMlp::forward(MatrixView<const float> x, MatrixView<float> residual, Arena& arena, int threads) const {
    // Block by block: the wide inner rows are the largest activation of a layer and need not exist for a whole shard.
    const std::int64_t rows = std::min(x.rows, kBlockTokens);
    const std::int64_t inner = down_.inputs;
    const MatrixView<float> wide = arena.matrix(rows, 2 * inner);
    float* workspace = arena.take(std::max(matmul_workspace_floats(gate_up_.inputs, gate_up_.outputs),
                                           matmul_workspace_floats(down_.inputs, down_.outputs)));
    for (std::int64_t first = 0; first < x.rows; first += kBlockTokens) {
        const std::int64_t count = std::min(kBlockTokens, x.rows - first);
        const MatrixView<float> both = wide.row_range(0, count);
        const MatrixView<float> gate = both.col_range(0, inner);
        matmul_rows(x.row_range(first, count), gate_up_.matrix(), both, nullptr, false, threads, workspace);
        swiglu(gate, both.col_range(inner, inner), gate, threads);
        matmul_rows(gate, down_.matrix(), residual.row_range(first, count), nullptr, true, threads, workspace);
    }
}

void GatedMlp::backward(MatrixView<const float> x, MatrixView<const float> d_y, MatrixView<float> d_x,
                        Gradients& gradients, Arena& arena, int threads) const {
    const std::int64_t rows = std::min(x.rows, kBlockTokens);
    const std::int64_t inner = down_.inputs;
    const MatrixView<float> wide = arena.matrix(rows, 2 * inner);
    const MatrixView<float> hidden = arena.matrix(rows, inner);
    const MatrixView<float> d_hidden = arena.matrix(rows, inner);
    float* workspace = arena.take(matmul_workspace_floats(gate_up_.inputs, gate_up_.outputs));
    for (std::int64_t first = 0; first < x.rows; first += kBlockTokens) {
        const std::int64_t count = std::min(kBlockTokens, x.rows - first);
        const MatrixView<const float> x_block = x.row_range(first, count);
        const MatrixView<const float> d_block = d_y.row_range(first, count);
        const MatrixView<float> both = wide.row_range(0, count);
        const MatrixView<float> gate = both.col_range(0, inner);
        const MatrixView<float> up = both.col_range(inner, inner);
        const MatrixView<float> product = hidden.row_range(0, count);
        const MatrixView<float> d_product = d_hidden.row_range(0, count);
        matmul_rows(x_block, gate_up_.matrix(), both, nullptr, false, threads, workspace);
        swiglu(gate, up, product, threads);
        matmul_rows_backward_weight(d_block, product, gradients.of(down_.matrix()), nullptr, threads);
        matmul_rows_backward_input(d_block, down_.matrix(), d_product, false, threads);
        swiglu_backward(gate, up, d_product, gate, up, threads);
        matmul_rows_backward_weight(both, x_block, gradients.of(gate_up_.matrix()), nullptr, threads);
        matmul_rows_backward_input(both, gate_up_.matrix(), d_x.row_range(first, count), false, threads);
    }
}

void GatedMlp::list_parameters(const ParameterList& list) {
    list.add_stacked(gate_up_, {{"gate_proj", down_.inputs}, {"up_proj", down_.inputs}});
    list.add_linear("down_proj", down_);
}

}  // namespace fenwick
