// The states before every chunk are formed first and kept; then the chunks are taken from last to first.
#include "kernels/cpu/backward/block_walk.h"

#include <algorithm>

#include "kernels/cpu/backward/chunk.h"
#include "kernels/cpu/backward/walk_states.h"
#include "kernels/gemm.h"

namespace fenwick::cpu {
namespace {

constexpr std::int64_t kC = kChunkTokens;

struct WalkMemory {
    ChunkScratch chunk;
    ChunkGradients g;
    WalkStates states;
    float* d_out;  // [64, dv]
};

WalkMemory carve_walk(const MixerShape& shape, std::int64_t entering, std::int64_t extra_columns, Carver& carver) {
    const ChunkScratch chunk = carve_chunk_scratch(shape, carver.take(chunk_scratch_floats(shape)));
    const ChunkGradients g = carve_chunk_gradients(shape, carver);
    return {chunk, g, WalkStates(shape, entering, extra_columns, carver), carver.take(kC * shape.value_dim)};
}

template <class Algebra>
class BackwardWalk {
public:
    BackwardWalk(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                 std::int64_t count, std::int64_t entering, std::int64_t extra_columns, Carver carver)
        : shape_(shape),
          inputs_(inputs),
          head_(head),
          first_(first),
          count_(count),
          memory_(carve_walk(shape, entering, extra_columns, carver)) {}

    [[nodiscard]] std::int64_t chunks() const { return (count_ + kC - 1) / kC; }
    [[nodiscard]] WalkStates& states() { return memory_.states; }

    // X(1), X(2), ... from X(0).
    void form_states() {
        for (std::int64_t c = 0; c + 1 < chunks(); ++c) {
            prepare(c, false);
            advance(c);
        }
    }

    // The chunk in reverse. `after` says whether anything comes after it, else states().after() is not looked at.
    // `d_out` is the shard's (none for a summary); `d_log_decay` [1 or dk], which may be null, is what every log decay
    // of the block gets.
    void chunk_backward(std::int64_t c, bool after, const MatrixView<const float>* d_out, const float* d_log_decay) {
        const bool with_outputs = d_out != nullptr;
        const ChunkGradients& g = memory_.g;
        prepare(c, with_outputs);
        clear_chunk_gradients(shape_, g);
        if (d_log_decay != nullptr) {
            for (std::int64_t i = 0; i < decays(); ++i) g.carried[i] = d_log_decay[i];
        }
        const ChunkOperands operands = Algebra::operands(shape_, with_outputs, memory_.chunk, g);
        const ChunkStates states = memory_.states.of(c);
        if (with_outputs) {
            gather_outputs(c, *d_out);
            chunk_outputs_backward(shape_, memory_.chunk, operands, states, memory_.d_out, g);
        } else {
            std::fill_n(states.d_before, shape_.key_dim * states.columns, 0.0F);
        }
        if (after) {
            own_state_backward(shape_, operands, states, g);
            if (states.columns > 0) Algebra::carry(shape_, memory_.chunk, states, g);
        }
        Algebra::finish(shape_, with_outputs, memory_.chunk, g);
    }

    // The chunk's gradients to where they belong.
    void scatter(std::int64_t c, bool with_outputs, const MixerGradients& to, const KeyRows& keys) const {
        const ChunkGradients& g = memory_.g;
        const std::int64_t dk = shape_.key_dim;
        std::copy_n(g.k, rows(c) * dk, keys.k + c * kC * dk);
        if (with_outputs) std::copy_n(g.q, rows(c) * dk, keys.q + c * kC * dk);
        const auto add = [&](MatrixView<float> view, const float* from, std::int64_t cols) {
            for (std::int64_t i = 0; i < rows(c); ++i) {
                float* row = view.row(first_ + c * kC + i) + head_ * cols;
                for (std::int64_t j = 0; j < cols; ++j) row[j] += from[i * cols + j];
            }
        };
        add(to.v, g.v, shape_.value_dim);
        if (shape_.algebra == TransitionAlgebra::kMatrix) add(to.beta, g.beta, 1);
        if (with_outputs && shape_.log_linear()) add(to.lambda, g.lambda, shape_.levels);
        for (std::int64_t i = 0; i < rows(c); ++i) {
            float* row = to.log_decay.row(first_ + c * kC + i) + head_ * decays();
            for (std::int64_t j = 0; j < decays(); ++j) {
                // At the floor nothing passes the token, so nothing depends on its decay.
                const float decay = memory_.chunk.log_decay[i * decays() + j];
                if (decay <= static_cast<float>(kLogDecayFloor)) continue;
                row[j] += diagonal() ? g.log_decay_channel[i * dk + j] : static_cast<float>(g.log_decay[i]);
            }
        }
    }

private:
    [[nodiscard]] bool diagonal() const { return shape_.algebra == TransitionAlgebra::kDiagonal; }
    [[nodiscard]] std::int64_t decays() const { return diagonal() ? shape_.key_dim : 1; }
    [[nodiscard]] std::int64_t rows(std::int64_t c) const { return std::min(kC, count_ - c * kC); }

    void prepare(std::int64_t c, bool with_outputs) {
        gather_chunk(shape_, inputs_, head_, first_ + c * kC, rows(c), with_outputs, memory_.chunk);
        Algebra::Forward::prepare(shape_, with_outputs, memory_.chunk);
    }

    // Past chunk c: every state carried over it, and its own added.
    void advance(std::int64_t c) {
        const std::int64_t dk = shape_.key_dim;
        const std::int64_t dv = shape_.value_dim;
        const ChunkScratch& chunk = memory_.chunk;
        WalkStates& states = memory_.states;
        const std::int64_t columns = states.columns(c);
        const std::int64_t stride = states.after_columns(c);
        const float keep = Algebra::Forward::kLazyCarry ? chunk.decay_all : 1.0F;
        for (std::int64_t r = 0; r < dk; ++r) {
            const float* from = states.before(c) + r * columns;
            float* to = states.after() + r * stride;
            for (std::int64_t i = 0; i < columns; ++i) to[i] = keep * from[i];
        }
        if (columns > 0) Algebra::Forward::carry(shape_, chunk, states.after(), columns, stride, states.read());
        const float add = shape_.log_linear() ? 0.0F : 1.0F;
        gemm_tn(dk, dv, kC, 1.0F, chunk.k_write, dk, chunk.u, dv, add, states.own(c), stride);
        states.merge(c);
    }

    void gather_outputs(std::int64_t c, MatrixView<const float> d_out) const {
        const std::int64_t dv = shape_.value_dim;
        for (std::int64_t i = 0; i < rows(c); ++i) {
            std::copy_n(d_out.row(first_ + c * kC + i) + head_ * dv, dv, memory_.d_out + i * dv);
        }
        std::fill(memory_.d_out + rows(c) * dv, memory_.d_out + kC * dv, 0.0F);
    }

    const MixerShape& shape_;
    const MixerInputs& inputs_;
    std::int64_t head_;
    std::int64_t first_;
    std::int64_t count_;
    WalkMemory memory_;
};

// Columns that a summary carries along to get its A: the matrix algebra's identity.
std::int64_t transition_columns(const MixerShape& shape) {
    return shape.algebra == TransitionAlgebra::kMatrix ? shape.key_dim : 0;
}

// A summary has one state, whatever reads it later.
MixerShape summary_shape(MixerShape shape) {
    shape.levels = 0;
    return shape;
}

template <class Algebra>
void outputs_backward_of(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                         std::int64_t count, std::span<const EnteringState> entering, MatrixView<const float> d_out,
                         const MixerGradients& gradients, const KeyRows& keys, float* d_entering, float* workspace) {
    BackwardWalk<Algebra> walk(shape, inputs, head, first, count, static_cast<std::int64_t>(entering.size()), 0,
                               Carver{workspace});
    walk.states().enter(entering);
    walk.form_states();
    for (std::int64_t c = walk.chunks() - 1; c >= 0; --c) {
        walk.chunk_backward(c, c + 1 < walk.chunks(), &d_out, nullptr);
        walk.scatter(c, true, gradients, keys);
        if (c > 0) walk.states().unmerge(c);
    }
    walk.states().leave(d_entering);
}

template <class Algebra>
void summary_backward_of(const MixerShape& full, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                         const float* d_summary, const MixerGradients& gradients, const KeyRows& keys,
                         float* workspace) {
    const MixerShape shape = summary_shape(full);
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    const std::int64_t extra = transition_columns(shape);
    BackwardWalk<Algebra> walk(shape, inputs, head, first, kBlockTokens, 0, extra, Carver{workspace});
    walk.states().enter({});
    walk.form_states();
    for (std::int64_t r = 0; r < dk; ++r) {
        float* row = walk.states().after() + r * (dv + extra);
        std::copy_n(d_summary + transition_floats(shape) + r * dv, dv, row);
        std::copy_n(d_summary + r * dk, extra, row + dv);
    }
    for (std::int64_t c = walk.chunks() - 1; c >= 0; --c) {
        walk.chunk_backward(c, true, nullptr, extra > 0 ? nullptr : d_summary);
        walk.scatter(c, false, gradients, keys);
        if (c > 0) walk.states().unmerge(c);
    }
}

// Calls `function` with a value of the algebra's type.
template <class Function>
void with_algebra(const MixerShape& shape, const Function& function) {
    switch (shape.algebra) {
        case TransitionAlgebra::kScalar:
            return function(ScalarChunkBackward{});
        case TransitionAlgebra::kDiagonal:
            return function(DiagonalChunkBackward{});
        case TransitionAlgebra::kMatrix:
            return function(MatrixChunkBackward{});
    }
}

}  // namespace

std::int64_t outputs_backward_floats(const MixerShape& shape, std::int64_t entering) {
    Carver carver{nullptr};
    carve_walk(shape, entering, 0, carver);
    return carver.used;
}

std::int64_t summary_backward_floats(const MixerShape& shape) {
    Carver carver{nullptr};
    carve_walk(summary_shape(shape), 0, transition_columns(shape), carver);
    return carver.used;
}

void walk_outputs_backward(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                           std::int64_t count, std::span<const EnteringState> entering, MatrixView<const float> d_out,
                           const MixerGradients& gradients, const KeyRows& keys, float* d_entering, float* workspace) {
    with_algebra(shape, [&](auto algebra) {
        outputs_backward_of<decltype(algebra)>(shape, inputs, head, first, count, entering, d_out, gradients, keys,
                                               d_entering, workspace);
    });
}

void walk_summary_backward(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                           const float* d_summary, const MixerGradients& gradients, const KeyRows& keys,
                           float* workspace) {
    with_algebra(shape, [&](auto algebra) {
        summary_backward_of<decltype(algebra)>(shape, inputs, head, first, d_summary, gradients, keys, workspace);
    });
}

}  // namespace fenwick::cpu
