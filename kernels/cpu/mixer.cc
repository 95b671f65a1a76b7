#include "kernels/mixer.h"

#include <omp.h>

#include <algorithm>

#include "core/fenwick.h"
#include "kernels/cpu/block_walk.h"
#include "kernels/cpu/entering_stack.h"
#include "kernels/gemm.h"

namespace fenwick {
namespace {

std::int64_t most_entering(std::int64_t last_block) {
    std::int64_t bits = 0;
    for (; last_block > 0; last_block >>= 1) ++bits;
    return bits;
}

}  // namespace

std::int64_t mixer_workspace_floats(const MixerShape& shape, std::int64_t last_block) {
    const std::int64_t floats = cpu::block_walk_floats(shape, most_entering(last_block)) +
                                cpu::EnteringStack::workspace_floats(shape, last_block);
    return (floats + 31) / 16 * 16;  // both parts of every thread start 64-byte aligned
}

void mixer_block_summaries(const MixerShape& shape, const MixerInputs& inputs, std::int64_t blocks, float* out,
                           int threads, float* workspace) {
    initialise_blas();
    const std::int64_t one = transition_floats(shape) + state_floats(shape);
    const std::int64_t per_thread = mixer_workspace_floats(shape, 0);
#pragma omp parallel for collapse(2) num_threads(threads) schedule(dynamic) if (threads > 1)
    for (std::int64_t b = 0; b < blocks; ++b) {
        for (std::int64_t h = 0; h < shape.heads; ++h) {
            cpu::walk_summary(shape, inputs, h, b * kBlockTokens, out + (b * shape.heads + h) * one,
                              workspace + omp_get_thread_num() * per_thread);
        }
    }
}

void mixer_outputs(const MixerShape& shape, const MixerInputs& inputs, std::int64_t first_block,
                   std::span<const EnteringNode> entering, const float* block_summaries, MatrixView<float> out,
                   int threads, float* workspace) {
    cpu::check_entering("mixer_outputs", first_block, entering);
    const std::int64_t rows = inputs.v.rows;
    if (rows == 0) return;
    initialise_blas();
    const std::int64_t blocks = (rows + kBlockTokens - 1) / kBlockTokens;
    const std::int64_t last_block = first_block + blocks - 1;
    const std::int64_t one = transition_floats(shape) + state_floats(shape);
    const std::int64_t per_thread = mixer_workspace_floats(shape, last_block);
    const std::int64_t stack_floats = cpu::EnteringStack::workspace_floats(shape, last_block);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (std::int64_t h = 0; h < shape.heads; ++h) {
        float* mine = workspace + omp_get_thread_num() * per_thread;
        float* walk_memory = mine + (stack_floats + 15) / 16 * 16;
        cpu::EnteringStack stack(shape, last_block, mine);
        for (const EnteringNode& node : entering) stack.push(node.bit, node.summary + h * one);
        for (std::int64_t b = 0; b < blocks; ++b) {
            const std::int64_t first = b * kBlockTokens;
            const std::int64_t count = std::min(kBlockTokens, rows - first);
            cpu::walk_outputs(shape, inputs, h, first, count, stack.entering(), out, walk_memory);
            if (b + 1 < blocks) stack.append_block(block_summaries + (b * shape.heads + h) * one);
        }
    }
}

}  // namespace fenwick
