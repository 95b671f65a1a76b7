// The states before every chunk are formed first and kept, X(c) [dk, columns of chunk c], side by side as in the
// forward's walk; then the chunks are taken from last to first. What a chunk's trailing ones merge shares one gradient.
#include "kernels/cpu/backward/block_walk.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/backward/chunk.h"
#include "kernels/gemm.h"

namespace fenwick::cpu {
namespace {

constexpr std::int64_t kC = kChunkTokens;
constexpr std::int64_t kMaxSlots = 64 + kBlockBits - kChunkBits + 1;

std::int64_t set_bits_of(std::int64_t n) {
    return std::popcount(static_cast<std::uint64_t>(n));
}

// Slots of the states before chunk c.
std::int64_t slots_before(const MixerShape& shape, std::int64_t entering, std::int64_t c) {
    return shape.log_linear() ? entering + set_bits_of(c) : 1;
}

struct WalkMemory {
    ChunkScratch chunk;
    ChunkGradients g;
    float* history = nullptr;   // X(c) of every chunk, one after another
    float* d_before = nullptr;  // of X(c)
    float* after = nullptr;     // what chunk c leaves, before merges: its carried slots and its own; or its gradient
    float* read = nullptr;      // [64, columns]
    float* write = nullptr;     // [64, columns]
    float* d_out = nullptr;     // [64, dv]
};

// `extra_columns` on the right of the states are carried with them and never written (the summary's A).
WalkMemory carve_walk(const MixerShape& shape, std::int64_t entering, std::int64_t extra_columns, Carver& carver) {
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    std::int64_t kept = 0;
    for (std::int64_t c = 0; c < kChunksPerBlock; ++c) kept += slots_before(shape, entering, c) * dv + extra_columns;
    const std::int64_t most = slots_before(shape, entering, kChunksPerBlock - 1) * dv + extra_columns;
    WalkMemory m;
    m.chunk = carve_chunk_scratch(shape, carver.take(chunk_scratch_floats(shape)));
    m.g = carve_chunk_gradients(shape, carver);
    m.history = carver.take(dk * kept);
    m.d_before = carver.take(dk * most);
    m.after = carver.take(dk * (most + dv));
    m.read = carver.take(kC * most);
    m.write = carver.take(kC * most);
    m.d_out = carver.take(kC * dv);
    return m;
}

template <class Algebra>
class BackwardWalk {
public:
    BackwardWalk(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                 std::int64_t count, std::span<const EnteringState> entering, std::int64_t extra_columns,
                 float* workspace)
        : shape_(shape),
          inputs_(inputs),
          head_(head),
          first_(first),
          count_(count),
          entering_(entering),
          extra_(extra_columns) {
        Carver carver{workspace};
        memory_ = carve_walk(shape, entering_slots(), extra_columns, carver);
        float* next = memory_.history;
        for (std::int64_t c = 0; c < chunks(); ++c) {
            states_[c] = next;
            next += shape.key_dim * columns(c);
        }
    }

    [[nodiscard]] std::int64_t chunks() const { return (count_ + kC - 1) / kC; }
    [[nodiscard]] float* states(std::int64_t c) { return states_[c]; }
    [[nodiscard]] float* d_before() { return memory_.d_before; }
    [[nodiscard]] float* d_after() { return memory_.after; }
    [[nodiscard]] std::int64_t columns(std::int64_t c) const {
        return slots_before(shape_, entering_slots(), c) * shape_.value_dim + extra_;
    }
    // Row stride of d_after() at chunk c: a log-linear chunk's own state stands beside the carried ones.
    [[nodiscard]] std::int64_t after_columns(std::int64_t c) const {
        return columns(c) + (shape_.log_linear() ? shape_.value_dim : 0);
    }

    // X(1), X(2), ... from X(0).
    void form_states() {
        for (std::int64_t c = 0; c + 1 < chunks(); ++c) {
            prepare(c, false);
            advance(c);
        }
    }

    void prepare(std::int64_t c, bool with_outputs) {
        gather_chunk(shape_, inputs_, head_, first_ + c * kC, rows(c), with_outputs, memory_.chunk);
        Algebra::Forward::prepare(shape_, with_outputs, memory_.chunk);
    }

    // The chunk in reverse; `after` says whether anything comes after it (else d_after() is not looked at). `d_out` is
    // this shard's (none for a summary), `d_log_decay` [1 or dk] what every log decay of the block gets.
    void chunk_backward(std::int64_t c, bool after, const MatrixView<const float>* d_out, const float* d_log_decay) {
        const bool with_outputs = d_out != nullptr;
        const ChunkGradients& g = memory_.g;
        prepare(c, with_outputs);
        clear_chunk_gradients(shape_, g);
        if (d_log_decay != nullptr) {
            const std::int64_t channels = shape_.algebra == TransitionAlgebra::kDiagonal ? shape_.key_dim : 1;
            for (std::int64_t i = 0; i < channels; ++i) g.carried[i] = d_log_decay[i];
        }
        const ChunkOperands operands = Algebra::operands(shape_, with_outputs, memory_.chunk, g);
        const ChunkStates states = states_of(c);
        if (!with_outputs) std::fill_n(memory_.d_before, shape_.key_dim * states.columns, 0.0F);
        if (with_outputs) {
            gather_outputs(c, *d_out);
            chunk_outputs_backward(shape_, memory_.chunk, operands, states, memory_.d_out, g);
        }
        if (after) {
            own_state_backward(shape_, operands, states, g);
            if (states.columns > 0) Algebra::carry(shape_, memory_.chunk, states, g);
        }
        Algebra::finish(shape_, with_outputs, memory_.chunk, g);
    }

    // From d_before() of chunk c to d_after() of chunk c - 1: every slot that was merged gets the merged one's.
    void unmerge(std::int64_t c) {
        const std::int64_t dv = shape_.value_dim;
        const std::int64_t from_columns = columns(c);
        const std::int64_t to_columns = after_columns(c - 1);
        const std::int64_t last = slots_before(shape_, entering_slots(), c) - 1;
        for (std::int64_t r = 0; r < shape_.key_dim; ++r) {
            const float* from = memory_.d_before + r * from_columns;
            float* to = memory_.after + r * to_columns;
            if (!shape_.log_linear()) {
                std::copy_n(from, to_columns, to);
                continue;
            }
            for (std::int64_t s = 0; s * dv < to_columns; ++s) {
                std::copy_n(from + std::min(s, last) * dv, dv, to + s * dv);
            }
        }
    }

    // The chunk's gradients to where they belong.
    void scatter(std::int64_t c, bool with_outputs, const MixerGradients& to, const KeyRows& keys) const {
        const ChunkGradients& g = memory_.g;
        const std::int64_t dk = shape_.key_dim;
        const std::int64_t dv = shape_.value_dim;
        std::copy_n(g.k, rows(c) * dk, keys.k + c * kC * dk);
        if (with_outputs) std::copy_n(g.q, rows(c) * dk, keys.q + c * kC * dk);
        const auto add = [&](MatrixView<float> view, const float* from, std::int64_t cols) {
            for (std::int64_t i = 0; i < rows(c); ++i) {
                float* row = view.row(first_ + c * kC + i) + head_ * cols;
                for (std::int64_t j = 0; j < cols; ++j) row[j] += from[i * cols + j];
            }
        };
        add(to.v, g.v, dv);
        if (shape_.algebra == TransitionAlgebra::kMatrix) add(to.beta, g.beta, 1);
        if (with_outputs && shape_.log_linear()) add(to.lambda, g.lambda, shape_.levels);
        const bool diagonal = shape_.algebra == TransitionAlgebra::kDiagonal;
        const std::int64_t decays = diagonal ? dk : 1;
        for (std::int64_t i = 0; i < rows(c); ++i) {
            float* row = to.log_decay.row(first_ + c * kC + i) + head_ * decays;
            for (std::int64_t j = 0; j < decays; ++j) {
                // At the floor nothing passes the token, so nothing depends on its decay.
                const float decay = memory_.chunk.log_decay[i * decays + j];
                if (decay <= static_cast<float>(kLogDecayFloor)) continue;
                row[j] += diagonal ? g.log_decay_channel[i * dk + j] : static_cast<float>(g.log_decay[i]);
            }
        }
    }

private:
    [[nodiscard]] std::int64_t entering_slots() const { return static_cast<std::int64_t>(entering_.size()); }
    [[nodiscard]] std::int64_t rows(std::int64_t c) const { return std::min(kC, count_ - c * kC); }

    // Past chunk c: every state carried over it, its own added, and merged as the chunk number's trailing ones say.
    void advance(std::int64_t c) {
        const std::int64_t dk = shape_.key_dim;
        const std::int64_t dv = shape_.value_dim;
        const std::int64_t from_columns = columns(c);
        const std::int64_t stride = after_columns(c);
        const ChunkScratch& chunk = memory_.chunk;
        const float keep = Algebra::Forward::kLazyCarry ? chunk.decay_all : 1.0F;
        for (std::int64_t r = 0; r < dk; ++r) {
            const float* from = states_[c] + r * from_columns;
            float* to = memory_.after + r * stride;
            for (std::int64_t i = 0; i < from_columns; ++i) to[i] = keep * from[i];
        }
        if (from_columns > 0) {
            Algebra::Forward::carry(shape_, chunk, memory_.after, from_columns, stride, memory_.read);
        }
        const bool own_slot = shape_.log_linear();
        float* own = memory_.after + (own_slot ? from_columns : 0);
        gemm_tn(dk, dv, kC, 1.0F, chunk.k_write, dk, chunk.u, dv, own_slot ? 0.0F : 1.0F, own, stride);
        for (std::int64_t left = from_columns - dv, i = c; own_slot && (i & 1) != 0; i >>= 1, left -= dv) {
            for (std::int64_t r = 0; r < dk; ++r) {
                float* row = memory_.after + r * stride + left;
                for (std::int64_t j = 0; j < dv; ++j) row[j] += row[dv + j];
            }
        }
        const std::int64_t to_columns = columns(c + 1);
        for (std::int64_t r = 0; r < dk; ++r) {
            std::copy_n(memory_.after + r * stride, to_columns, states_[c + 1] + r * to_columns);
        }
    }

    ChunkStates states_of(std::int64_t c) {
        std::int64_t slot = 0;
        for (const EnteringState& e : entering_) levels_[slot++] = kBlockBits + 1 + e.bit;
        for (int bit = kBlockBits - kChunkBits - 1; bit >= 0; --bit) {
            if (((c >> bit) & 1) != 0) levels_[slot++] = kChunkBits + 1 + bit;
        }
        ChunkStates s;
        s.columns = columns(c);
        s.before = states_[c];
        s.d_before = memory_.d_before;
        s.d_after = memory_.after;
        s.after_stride = after_columns(c);
        s.d_own = memory_.after + (shape_.log_linear() ? s.columns : 0);
        s.levels = levels_;
        s.read = memory_.read;
        s.write = memory_.write;
        return s;
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
    std::span<const EnteringState> entering_;
    std::int64_t extra_;
    WalkMemory memory_;
    float* states_[kChunksPerBlock];
    std::int64_t levels_[kMaxSlots];
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
    BackwardWalk<Algebra> walk(shape, inputs, head, first, count, entering, 0, workspace);
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    const std::int64_t columns = walk.columns(0);
    // A linear read-out has one state: the sum of what enters, oldest first.
    std::fill_n(walk.states(0), dk * columns, 0.0F);
    std::int64_t at = 0;
    for (const EnteringState& e : entering) {
        for (std::int64_t r = 0; r < dk; ++r) {
            float* row = walk.states(0) + r * columns + at;
            for (std::int64_t c = 0; c < dv; ++c) row[c] += e.state[r * dv + c];
        }
        if (shape.log_linear()) at += dv;
    }
    walk.form_states();
    for (std::int64_t c = walk.chunks() - 1; c >= 0; --c) {
        walk.chunk_backward(c, c + 1 < walk.chunks(), &d_out, nullptr);
        walk.scatter(c, true, gradients, keys);
        if (c > 0) walk.unmerge(c);
    }
    at = 0;
    for (std::size_t e = 0; e < entering.size(); ++e) {
        float* to = d_entering + static_cast<std::int64_t>(e) * dk * dv;
        for (std::int64_t r = 0; r < dk; ++r) std::copy_n(walk.d_before() + r * columns + at, dv, to + r * dv);
        if (shape.log_linear()) at += dv;
    }
}

template <class Algebra>
void summary_backward_of(const MixerShape& full, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                         const float* d_summary, const MixerGradients& gradients, const KeyRows& keys,
                         float* workspace) {
    const MixerShape shape = summary_shape(full);
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    const std::int64_t extra = transition_columns(shape);
    const std::int64_t columns = dv + extra;
    const std::int64_t transition = transition_floats(shape);
    BackwardWalk<Algebra> walk(shape, inputs, head, first, kBlockTokens, {}, extra, workspace);
    std::fill_n(walk.states(0), dk * columns, 0.0F);
    for (std::int64_t r = 0; r < extra; ++r) walk.states(0)[r * columns + dv + r] = 1.0F;
    walk.form_states();
    for (std::int64_t r = 0; r < dk; ++r) {
        float* row = walk.d_after() + r * columns;
        std::copy_n(d_summary + transition + r * dv, dv, row);
        std::copy_n(d_summary + r * dk, extra, row + dv);
    }
    for (std::int64_t c = walk.chunks() - 1; c >= 0; --c) {
        walk.chunk_backward(c, true, nullptr, extra > 0 ? nullptr : d_summary);
        walk.scatter(c, false, gradients, keys);
        if (c > 0) walk.unmerge(c);
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
