// The entry points: checks, the workspace's layout, and the order of the launches.
#include "kernels/cuda/backward/mixer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/cuda/check.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/backward/cumulative.h"
#include "kernels/cuda/backward/diagonal.h"
#include "kernels/cuda/backward/matrix.h"
#include "kernels/cuda/backward/plain.h"
#include "kernels/cuda/backward/scalar.h"
#include "kernels/summary.h"

namespace fenwick::cuda {
namespace {

using namespace backward;  // NOLINT(google-build-using-namespace): these files are one unit

struct Layout {
    Tree tree;
    // One of these paths.
    bool has_scalar = false;
    bool has_diagonal = false;
    bool has_matrix = false;
    Scalar scalar;
    Diagonal diagonal;
    Matrix matrix;
    PlainWorkspace plain;
    std::optional<matrix::Kept> kept;  // of linear matrix models: the workspace starts with the forward pass's
    std::size_t bytes = 0;

    /// Linear models of these: the second step forms the gradients of all rows, those of an open block too, from dS
    /// alone; no gradient of A is needed (diagonal.h, matrix.h).
    [[nodiscard]] bool all_in_second_step() const {
        return (has_diagonal && diagonal.linear) || (has_matrix && matrix.linear);
    }
};

Layout lay_out(const MixerShape& shape, Operand operand, std::int64_t rows, std::int64_t first_block, void* memory) {
    Carver carver{static_cast<unsigned char*>(memory)};
    Layout layout;
    layout.has_scalar = has_scalar_kernels(shape, operand, rows, first_block);
    layout.has_diagonal = has_diagonal_kernels(shape, operand, rows, first_block);
    layout.has_matrix = has_matrix_kernels(shape, operand, rows, first_block);
    if (layout.has_matrix && !shape.log_linear()) {
        layout.kept = matrix::kept_in(shape, operand, rows, first_block, memory);
        carver.take<unsigned char>(
            static_cast<std::int64_t>(matrix_workspace_bytes(shape, operand, rows, first_block)));
    }
    const matrix::Kept* kept = layout.kept ? &*layout.kept : nullptr;
    layout.tree = make_tree(shape, rows, first_block, kept, carver);
    if (layout.has_scalar) {
        layout.scalar = make_scalar(shape, rows, layout.tree.slots, carver);
    } else if (layout.has_diagonal) {
        layout.diagonal = make_diagonal(shape, rows, layout.tree.slots, carver);
    } else if (layout.has_matrix) {
        layout.matrix = make_matrix(shape, rows, layout.tree.slots, kept, carver);
    } else {
        layout.plain = make_plain_workspace(shape, rows, carver);
    }
    layout.bytes = std::max(carver.used, mixer_workspace_bytes(shape, operand, rows, first_block));
    return layout;
}

std::string describe(const Call& call) {
    const MixerShape& s = call.shape;
    constexpr const char* kNames[] = {"scalar", "diagonal", "matrix"};
    return fmt::format("{} transitions, {} heads, {} key heads, d_k {}, d_v {}, {} levels, {} rows from block {}",
                       kNames[static_cast<int>(s.algebra)], s.heads, s.key_heads, s.key_dim, s.value_dim, s.levels,
                       call.inputs.rows, call.first_block);
}

void check_shape(const Call& call) {
    const MixerShape& s = call.shape;
    const bool good = s.heads > 0 && s.key_heads > 0 && s.heads % s.key_heads == 0 && s.key_dim > 0 &&
                      s.key_dim <= 256 && s.value_dim > 0 && s.value_dim <= 256 && s.levels >= 0;
    constexpr std::int64_t kMostWork = std::int64_t{1} << 31;  // thread blocks of a launch
    const std::int64_t chunks = (call.inputs.rows + kChunkTokens - 1) / kChunkTokens;
    if (good && chunks * s.heads * 8 < kMostWork) return;
    throw InternalError("mixer backward: no GPU kernel takes " + describe(call) +
                        "; expected heads a multiple of key heads and dims of 1 to 256; smaller passes where there are "
                        "too many rows");
}

void check_gradients(const Call& call) {
    const MixerGradients& g = call.gradients;
    const bool matrix = call.shape.algebra == TransitionAlgebra::kMatrix;
    if (g.q != nullptr && g.k != nullptr && g.v != nullptr && g.log_decay != nullptr && (g.beta != nullptr) == matrix &&
        (g.lambda != nullptr) == call.shape.log_linear()) {
        return;
    }
    throw InternalError(fmt::format(
        "mixer backward: expected places for the gradients of q, k, v, log decay{}{}, found {} {} {} {} {} {}, for {}",
        matrix ? ", beta" : "", call.shape.log_linear() ? ", lambda" : "", g.q != nullptr, g.k != nullptr,
        g.v != nullptr, g.log_decay != nullptr, g.beta != nullptr, g.lambda != nullptr, describe(call)));
}

void check_entering(const Call& call, std::span<const EnteringNode> entering, std::span<float* const> d_entering) {
    std::int64_t covered = 0;
    bool good = entering.size() == d_entering.size();
    for (const EnteringNode& node : entering) {
        const std::int64_t blocks = std::int64_t{1} << node.bit;
        good = good && covered % (2 * blocks) == 0 && (call.first_block & blocks) != 0;
        covered += blocks;
    }
    if (good && covered == call.first_block) return;
    throw InternalError(
        fmt::format("mixer_outputs_backward: {} nodes over {} blocks and {} gradients do not enter block {}",
                    entering.size(), covered, d_entering.size(), call.first_block));
}

void clear_gradients(const Call& call) {
    const MixerShape& s = call.shape;
    const MixerGradients& g = call.gradients;
    const std::int64_t rows = call.inputs.rows;
    const std::int64_t channels = s.algebra == TransitionAlgebra::kDiagonal ? s.key_dim : 1;
    launch_clear(g.q, g.q_stride, rows, s.key_heads * s.key_dim, call.stream);
    launch_clear(g.k, g.k_stride, rows, s.key_heads * s.key_dim, call.stream);
    launch_clear(g.v, g.v_stride, rows, s.heads * s.value_dim, call.stream);
    launch_clear(g.log_decay, g.decay_stride, rows, s.heads * channels, call.stream);
    launch_clear(g.beta, g.beta_stride, rows, s.heads, call.stream);
    launch_clear(g.lambda, g.lambda_stride, rows, s.heads * s.levels, call.stream);
}

}  // namespace

std::size_t mixer_backward_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                           std::int64_t first_block) {
    return lay_out(shape, operand, rows, first_block, nullptr).bytes;
}

void mixer_outputs_backward(const MixerShape& shape, Operand operand, const MixerInputs& inputs,
                            std::int64_t first_block, std::span<const EnteringNode> entering, const ShardNodes& nodes,
                            const void* d_out, std::int64_t d_out_stride, const MixerGradients& gradients,
                            std::span<float* const> d_entering, float* d_block_summaries, bool after_outputs,
                            void* workspace, cudaStream_t stream) {
    const Call call{shape, operand, inputs, first_block, d_out, d_out_stride, gradients, stream, after_outputs};
    check_shape(call);
    check_gradients(call);
    check_entering(call, entering, d_entering);
    if (inputs.rows == 0) return;
    Layout layout = lay_out(shape, operand, inputs.rows, first_block, workspace);
    set_nodes(layout.tree, entering, nodes, d_entering, d_block_summaries);
    if (!layout.kept || !after_outputs) launch_enter(layout.tree, stream);
    if (layout.has_scalar) {
        launch_scalar_outputs(layout.scalar, call, layout.tree);
    } else if (layout.has_diagonal) {
        launch_diagonal_outputs(layout.diagonal, call, layout.tree);
    } else if (layout.has_matrix) {
        launch_matrix_outputs(layout.matrix, call, layout.tree);
    } else {
        clear_gradients(call);
        launch_plain_outputs(call, layout.tree, layout.plain);
    }
    launch_leave(layout.tree, !layout.all_in_second_step(), stream);
}

void mixer_block_summaries_backward(const MixerShape& shape, Operand operand, const MixerInputs& inputs,
                                    std::int64_t first_block, const void* d_out, std::int64_t d_out_stride,
                                    std::int64_t blocks, const float* d_summaries, const MixerGradients& gradients,
                                    void* workspace, cudaStream_t stream) {
    const Call call{shape, operand, inputs, first_block, d_out, d_out_stride, gradients, stream};
    check_shape(call);
    check_gradients(call);
    if (blocks * kBlockTokens > inputs.rows) {
        throw InternalError(fmt::format("mixer_block_summaries_backward: {} blocks of {} rows", blocks, inputs.rows));
    }
    if (inputs.rows == 0) return;
    const Layout layout = lay_out(shape, operand, inputs.rows, first_block, workspace);
    if (blocks == 0 && !layout.all_in_second_step()) return;
    if (layout.has_diagonal) return launch_diagonal_summaries(layout.diagonal, call, layout.tree, blocks, d_summaries);
    if (layout.has_matrix) return launch_matrix_summaries(layout.matrix, call, layout.tree, blocks, d_summaries);
    if (layout.has_scalar) return launch_scalar_summaries(layout.scalar, call, blocks, d_summaries);
    launch_plain_summaries(call, blocks, d_summaries, layout.plain);
}

}  // namespace fenwick::cuda
