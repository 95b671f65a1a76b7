#include "kernels/cuda/mixer.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/mixer_algebras.h"

namespace fenwick::cuda {
namespace {

/// The functions of one algebra.
struct Algebra {
    decltype(&scalar_workspace_bytes) workspace_bytes = nullptr;
    decltype(&scalar_block_summaries) block_summaries = nullptr;
    decltype(&scalar_prepare_outputs) prepare_outputs = nullptr;
    decltype(&scalar_outputs) outputs = nullptr;
};

const char* name_of(TransitionAlgebra algebra) {
    switch (algebra) {
        case TransitionAlgebra::kScalar:
            return "scalar";
        case TransitionAlgebra::kDiagonal:
            return "diagonal";
        case TransitionAlgebra::kMatrix:
            return "matrix";
    }
    return "unknown";
}

/// The one list of what was built: CMakeLists.txt defines a name for each algebra whose sources it has.
Algebra find_algebra(TransitionAlgebra algebra) {
#ifdef FENWICK_CUDA_SCALAR
    if (algebra == TransitionAlgebra::kScalar) {
        return {scalar_workspace_bytes, scalar_block_summaries, scalar_prepare_outputs, scalar_outputs};
    }
#endif
#ifdef FENWICK_CUDA_MATRIX
    if (algebra == TransitionAlgebra::kMatrix) {
        return {matrix_workspace_bytes, matrix_block_summaries, matrix_prepare_outputs, matrix_outputs};
    }
#endif
#ifdef FENWICK_CUDA_DIAGONAL
    if (algebra == TransitionAlgebra::kDiagonal) {
        return {diagonal_workspace_bytes, diagonal_block_summaries, diagonal_prepare_outputs, diagonal_outputs};
    }
#endif
    throw InternalError(
        fmt::format("mixer: this build has no GPU kernels for {} transitions; use --device cpu", name_of(algebra)));
}

void check_entering(std::int64_t first_block, std::span<const EnteringNode> entering) {
    std::int64_t covered = 0;
    for (const EnteringNode& node : entering) {
        const std::int64_t blocks = std::int64_t{1} << node.bit;
        if (covered % (2 * blocks) != 0 || (first_block & blocks) == 0) {
            throw InternalError(
                fmt::format("mixer_outputs: node of bit {} does not enter block {}", node.bit, first_block));
        }
        covered += blocks;
    }
    if (covered != first_block) {
        throw InternalError(
            fmt::format("mixer_outputs: entering nodes cover {} blocks, expected {}", covered, first_block));
    }
}

}  // namespace

std::size_t mixer_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                  std::int64_t first_block) {
    return find_algebra(shape.algebra).workspace_bytes(shape, operand, rows, first_block);
}

void mixer_block_summaries(const MixerShape& shape, Operand operand, const MixerInputs& inputs,
                           std::int64_t first_block, std::int64_t blocks, float* out, void* workspace,
                           cudaStream_t stream) {
    if (blocks * kBlockTokens > inputs.rows) {
        throw InternalError(fmt::format("mixer_block_summaries: {} blocks of {} rows", blocks, inputs.rows));
    }
    const Algebra algebra = find_algebra(shape.algebra);
    if (blocks == 0) return;
    algebra.block_summaries({shape, operand, inputs, first_block, {}, false, workspace, stream}, blocks, out);
}

void mixer_prepare_outputs(const MixerShape& shape, Operand operand, const MixerInputs& inputs,
                           std::int64_t first_block, bool after_summaries, void* workspace, cudaStream_t stream) {
    const Algebra algebra = find_algebra(shape.algebra);
    if (inputs.rows == 0) return;
    algebra.prepare_outputs({shape, operand, inputs, first_block, {}, after_summaries, workspace, stream});
}

void mixer_outputs(const MixerShape& shape, Operand operand, const MixerInputs& inputs, std::int64_t first_block,
                   std::span<const EnteringNode> entering, const ShardNodes& nodes, void* out, void* workspace,
                   cudaStream_t stream) {
    check_entering(first_block, entering);
    const std::int64_t followed = (inputs.rows + kBlockTokens - 1) / kBlockTokens - 1;  // blocks with one after them
    if (nodes.above != nullptr && nodes.above_blocks < followed) {
        throw InternalError(fmt::format("mixer_outputs: nodes above {} blocks of a shard in which {} are followed",
                                        nodes.above_blocks, followed));
    }
    const Algebra algebra = find_algebra(shape.algebra);
    if (inputs.rows == 0) return;
    algebra.outputs({shape, operand, inputs, first_block, entering, false, workspace, stream}, nodes, out);
}

}  // namespace fenwick::cuda
