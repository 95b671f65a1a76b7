// States stand side by side in one wide matrix X [dk, slots * dv], oldest bucket first, so that reading and carrying
// all of them are single products. The slots are a binary counter: a new chunk's state is pushed on the right, and for
// each trailing one of the chunk number the two rightmost slots merge into a bucket twice as long. The linear read-out
// keeps one slot.
#include "kernels/cpu/block_walk.h"

#include <algorithm>

#include "kernels/gemm.h"
#include "kernels/vector_math.h"

namespace fenwick::cpu {
namespace {

constexpr std::int64_t kC = kChunkTokens;
constexpr std::int64_t kInBlockSlots = kBlockBits - kChunkBits + 1;  // six set bits and the new state
constexpr std::int64_t kMaxSlots = 64 + kInBlockSlots;

std::int64_t slot_count(const MixerShape& shape, std::int64_t entering) {
    return shape.log_linear() ? entering + kInBlockSlots : 1;
}

struct Slot {
    std::int64_t level = 0;   // token level of the bucket
    double log_factor = 0.0;  // lazily carried algebras: the state is exp(log_factor) * X
};

template <class Algebra>
class Walk {
public:
    // `extra_columns` on the right of the states are carried with them and never written (the summary's A).
    Walk(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t slots,
         std::int64_t extra_columns, float* workspace)
        : shape_(shape),
          inputs_(inputs),
          head_(head),
          dv_(shape.value_dim),
          extra_(extra_columns),
          stride_(slots * shape.value_dim + extra_columns),
          chunk_(carve_chunk_scratch(shape, workspace)) {
        float* next = workspace + chunk_scratch_floats(shape);
        out_ = next;
        read_ = out_ + kC * dv_;
        states_ = read_ + kC * stride_;
    }

    static std::int64_t floats(const MixerShape& shape, std::int64_t slots, std::int64_t extra_columns) {
        const std::int64_t stride = slots * shape.value_dim + extra_columns;
        return chunk_scratch_floats(shape) + kC * shape.value_dim + kC * stride + shape.key_dim * stride;
    }

    [[nodiscard]] float* states() { return states_; }
    [[nodiscard]] std::int64_t stride() const { return stride_; }
    [[nodiscard]] const ChunkScratch& chunk() const { return chunk_; }

    void push(std::int64_t level, const float* state) {
        float* to = states_ + live_ * dv_;
        for (std::int64_t r = 0; r < shape_.key_dim; ++r) std::copy_n(state + r * dv_, dv_, to + r * stride_);
        slots_[live_++] = {level, 0.0};
    }

    void push_zero() {
        for (std::int64_t r = 0; r < shape_.key_dim; ++r) std::fill_n(states_ + r * stride_, dv_, 0.0F);
        slots_[live_++] = {};
    }

    // Adds `state` to the one slot of a linear read-out.
    void add_to_first(const float* state) {
        for (std::int64_t r = 0; r < shape_.key_dim; ++r) {
            for (std::int64_t c = 0; c < dv_; ++c) states_[r * stride_ + c] += state[r * dv_ + c];
        }
    }

    void prepare(std::int64_t first, std::int64_t count, bool with_outputs) {
        gather_chunk(shape_, inputs_, head_, first, count, with_outputs, chunk_);
        Algebra::prepare(shape_, with_outputs, chunk_);
    }

    // The chunk's output rows [64, dv]: its own part, then the buckets', oldest first.
    const float* outputs() {
        if (shape_.log_linear()) apply_lambda_to_scores(shape_, chunk_);
        gemm_nn(kC, dv_, kC, 1.0F, chunk_.scores, kC, chunk_.values, dv_, 0.0F, out_, dv_);
        if (live_ == 0) return out_;
        const std::int64_t columns = live_ * dv_;
        gemm_nn(kC, columns, shape_.key_dim, 1.0F, chunk_.q_read, shape_.key_dim, states_, stride_, 0.0F, read_,
                columns);
        float factor[kC];
        for (std::int64_t s = 0; s < live_; ++s) {
            read_factors(slots_[s], factor);
            for (std::int64_t i = 0; i < kC; ++i) {
                float* to = out_ + i * dv_;
                const float* from = read_ + i * columns + s * dv_;
                for (std::int64_t c = 0; c < dv_; ++c) to[c] += factor[i] * from[c];
            }
        }
        return out_;
    }

    // Moves past the chunk: carries every state over it and adds its own. `index` is the chunk's number in the block.
    void advance(std::int64_t index) {
        const std::int64_t dk = shape_.key_dim;
        if (!shape_.log_linear()) {
            Algebra::carry(shape_, chunk_, states_, dv_ + extra_, stride_, read_);
            const float keep = Algebra::kLazyCarry ? chunk_.decay_all : 1.0F;
            gemm_tn(dk, dv_, kC, 1.0F, chunk_.k_write, dk, chunk_.u, dv_, keep, states_, stride_);
            return;
        }
        if (live_ > 0) {
            Algebra::carry(shape_, chunk_, states_, live_ * dv_, stride_, read_);
            if (Algebra::kLazyCarry) {
                for (std::int64_t s = 0; s < live_; ++s) slots_[s].log_factor += chunk_.log_decay_all;
            }
        }
        gemm_tn(dk, dv_, kC, 1.0F, chunk_.k_write, dk, chunk_.u, dv_, 0.0F, states_ + live_ * dv_, stride_);
        slots_[live_++] = {kChunkBits + 1, 0.0};
        for (; (index & 1) != 0; index >>= 1) merge_last_two();
    }

private:
    void read_factors(const Slot& slot, float* factor) const {
        if (Algebra::kLazyCarry) {
            for (std::int64_t i = 0; i < kC; ++i) {
                factor[i] = vexp(static_cast<float>(chunk_.cumulative[i] + slot.log_factor));
            }
        } else {
            std::fill_n(factor, kC, 1.0F);
        }
        if (!shape_.log_linear()) return;
        const std::int64_t level = std::min(slot.level, shape_.levels - 1);
        for (std::int64_t i = 0; i < kC; ++i) factor[i] *= chunk_.lambda[i * shape_.levels + level];
    }

    void merge_last_two() {
        Slot& older = slots_[live_ - 2];
        const float keep = Algebra::kLazyCarry ? vexp(static_cast<float>(older.log_factor)) : 1.0F;
        float* to = states_ + (live_ - 2) * dv_;
        for (std::int64_t r = 0; r < shape_.key_dim; ++r) {
            float* row = to + r * stride_;
            for (std::int64_t c = 0; c < dv_; ++c) row[c] = keep * row[c] + row[dv_ + c];
        }
        older = {older.level + 1, 0.0};
        --live_;
    }

    const MixerShape& shape_;
    const MixerInputs& inputs_;
    std::int64_t head_;
    std::int64_t dv_;
    std::int64_t extra_;
    std::int64_t stride_;
    ChunkScratch chunk_;
    float* out_ = nullptr;     // [64, dv]
    float* read_ = nullptr;    // [64, stride]
    float* states_ = nullptr;  // X [dk, stride]
    Slot slots_[kMaxSlots];
    std::int64_t live_ = 0;
};

// Extra columns that a summary needs to carry its A along: the matrix algebra carries the identity.
std::int64_t transition_columns(const MixerShape& shape) {
    return shape.algebra == TransitionAlgebra::kMatrix ? shape.key_dim : 0;
}

template <class Algebra>
void summary_of(const MixerShape& full, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                float* summary, float* workspace) {
    MixerShape shape = full;
    shape.levels = 0;  // a summary has one state, whatever reads it later
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    const std::int64_t extra = transition_columns(shape);
    Walk<Algebra> walk(shape, inputs, head, 1, extra, workspace);
    walk.push_zero();
    for (std::int64_t r = 0; r < extra; ++r) {
        float* row = walk.states() + r * walk.stride() + dv;
        std::fill_n(row, extra, 0.0F);
        row[r] = 1.0F;
    }
    const std::int64_t transition = transition_floats(shape);
    double log_sum = 0.0;
    if (shape.algebra == TransitionAlgebra::kDiagonal) std::fill_n(summary, dk, 0.0F);
    for (std::int64_t c = 0; c < kChunksPerBlock; ++c) {
        walk.prepare(first + c * kC, kC, false);
        walk.advance(c);
        log_sum += walk.chunk().log_decay_all;
        if (shape.algebra == TransitionAlgebra::kDiagonal) {
            for (std::int64_t i = 0; i < dk; ++i) summary[i] += walk.chunk().log_channel[i];
        }
    }
    if (shape.algebra == TransitionAlgebra::kScalar) summary[0] = static_cast<float>(log_sum);
    for (std::int64_t r = 0; r < dk; ++r) {
        const float* row = walk.states() + r * walk.stride();
        if (extra > 0) std::copy_n(row + dv, dk, summary + r * dk);
        std::copy_n(row, dv, summary + transition + r * dv);
    }
}

template <class Algebra>
void outputs_of(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                std::int64_t count, std::span<const EnteringState> entering, MatrixView<float> out, float* workspace) {
    Walk<Algebra> walk(shape, inputs, head, slot_count(shape, static_cast<std::int64_t>(entering.size())), 0,
                       workspace);
    if (shape.log_linear()) {
        for (const EnteringState& e : entering) walk.push(kBlockBits + 1 + e.bit, e.state);
    } else {
        walk.push_zero();
        for (const EnteringState& e : entering) walk.add_to_first(e.state);
    }
    const std::int64_t dv = shape.value_dim;
    for (std::int64_t done = 0; done < count; done += kC) {
        const std::int64_t rows = std::min(kC, count - done);
        walk.prepare(first + done, rows, true);
        const float* o = walk.outputs();
        for (std::int64_t i = 0; i < rows; ++i) std::copy_n(o + i * dv, dv, out.row(first + done + i) + head * dv);
        if (done + kC < count) walk.advance(done / kC);
    }
}

}  // namespace

std::int64_t block_walk_floats(const MixerShape& shape, std::int64_t entering) {
    const std::int64_t for_outputs = Walk<ScalarChunk>::floats(shape, slot_count(shape, entering), 0);
    const std::int64_t for_summary = Walk<ScalarChunk>::floats(shape, 1, transition_columns(shape));
    return std::max(for_outputs, for_summary);
}

void walk_summary(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                  float* summary, float* workspace) {
    switch (shape.algebra) {
        case TransitionAlgebra::kScalar:
            return summary_of<ScalarChunk>(shape, inputs, head, first, summary, workspace);
        case TransitionAlgebra::kDiagonal:
            return summary_of<DiagonalChunk>(shape, inputs, head, first, summary, workspace);
        case TransitionAlgebra::kMatrix:
            return summary_of<MatrixChunk>(shape, inputs, head, first, summary, workspace);
    }
}

void walk_outputs(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                  std::int64_t count, std::span<const EnteringState> entering, MatrixView<float> out,
                  float* workspace) {
    switch (shape.algebra) {
        case TransitionAlgebra::kScalar:
            return outputs_of<ScalarChunk>(shape, inputs, head, first, count, entering, out, workspace);
        case TransitionAlgebra::kDiagonal:
            return outputs_of<DiagonalChunk>(shape, inputs, head, first, count, entering, out, workspace);
        case TransitionAlgebra::kMatrix:
            return outputs_of<MatrixChunk>(shape, inputs, head, first, count, entering, out, workspace);
    }
}

}  // namespace fenwick::cpu
