// A mixer on a shard with random inputs, for bench_ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "core/fenwick.h"
#include "kernels/cuda/mixer.h"
#include "parallel/node_summaries.h"
#include "parallel/shard_plan.h"
#include "tests/bench/device_data.h"
#include "worker/cuda/rank_exchange.h"

namespace fenwick::bench {

/// A shard's rows and what the mixer makes of them.
class MixerShard {
public:
    MixerShard(const MixerShape& shape, const Shard& shard, cudaStream_t stream)
        : shape_(shape), shard_(shard), stream_(stream) {
        const std::int64_t first = shard.first_token;
        const std::int64_t rows = shard.tokens;
        const bool matrix = shape.algebra == TransitionAlgebra::kMatrix;
        q_ = random_operand(first, rows, shape.key_heads, shape.key_dim, 0.15F, false, 1, stream);
        k_ = random_operand(first, rows, shape.key_heads, shape.key_dim, 0.15F, matrix, 2, stream);
        v_ = random_operand(first, rows, shape.heads, shape.value_dim, 1.0F, false, 3, stream);
        decay_ = random_floats(first, rows, shape.heads, -0.05F, 0.0F, 4, stream);
        if (matrix) beta_ = random_floats(first, rows, shape.heads, 0.0F, 1.0F, 5, stream);
        if (shape.levels > 0) lambda_ = random_floats(first, rows, shape.heads * shape.levels, 0.1F, 1.5F, 6, stream);
        in_.q = q_.data();
        in_.k = k_.data();
        in_.v = v_.data();
        in_.log_decay = decay_.data();
        in_.beta = beta_.data();
        in_.lambda = lambda_.data();
        in_.q_stride = in_.k_stride = shape.key_heads * shape.key_dim;
        in_.v_stride = shape.heads * shape.value_dim;
        in_.decay_stride = in_.beta_stride = shape.heads;
        in_.lambda_stride = shape.heads * shape.levels;
        in_.rows = rows;
        const std::int64_t floats = summary_floats(shape);
        blocks_ = rows / kBlockTokens;
        summaries_ = cuda::DeviceBuffer<float>(blocks_ * floats, stream);
        scratch_ = cuda::DeviceBuffer<float>(cover_scratch_floats(blocks_, floats), stream);
        workspace_ = cuda::DeviceBuffer<std::byte>(static_cast<std::int64_t>(cuda::mixer_workspace_bytes(
                                                       shape, cuda::Operand::kBf16, rows, shard.first_block)),
                                                   stream);
        out_ = cuda::DeviceBuffer<__nv_bfloat16>(rows * shape.heads * shape.value_dim, stream);
    }

    /// The mixer alone: nothing for other ranks or passes.
    void run_bare() {
        // Nothing follows the last block: nobody needs its summary.
        cuda::mixer_block_summaries(shape_, cuda::Operand::kBf16, in_, 0, blocks_ - 1, summaries_.data(),
                                    workspace_.data(), stream_);
        prepare();
        cuda::mixer_outputs(shape_, cuda::Operand::kBf16, in_, 0, {}, {summaries_.data()}, out_.data(),
                            workspace_.data(), stream_);
    }

    /// The mixer's step of a pass as the engine does it: with the exchange and the next pass's list.
    void run_step(cuda::RankExchange& exchange, const ShardPlan& plan) {
        NodeSummaries carried(summary_floats(shape_), 0);
        exchange.begin_pass(plan);
        cuda::mixer_block_summaries(shape_, cuda::Operand::kBf16, in_, shard_.first_block, blocks_, summaries_.data(),
                                    workspace_.data(), stream_);
        const std::vector<EnteringNode> entering =
            exchange.start_exchange(0, shape_, summaries_.data(), scratch_.data(), carried, stream_);
        prepare();
        exchange.await_entering(stream_);
        cuda::mixer_outputs(shape_, cuda::Operand::kBf16, in_, shard_.first_block, entering,
                            {summaries_.data(), scratch_.data(), blocks_}, out_.data(), workspace_.data(), stream_);
        exchange.await_list(stream_);
    }

    [[nodiscard]] std::uint64_t output_checksum() {
        return checksum(out_.data(), out_.size(), shard_.first_token * shape_.heads * shape_.value_dim, stream_);
    }

private:
    void prepare() {
        cuda::mixer_prepare_outputs(shape_, cuda::Operand::kBf16, in_, shard_.first_block, true, workspace_.data(),
                                    stream_);
    }

    MixerShape shape_;
    Shard shard_;
    cudaStream_t stream_;
    cuda::DeviceBuffer<__nv_bfloat16> q_, k_, v_, out_;
    cuda::DeviceBuffer<float> decay_, beta_, lambda_, summaries_, scratch_;
    cuda::DeviceBuffer<std::byte> workspace_;
    cuda::MixerInputs in_;
    std::int64_t blocks_ = 0;
};

}  // namespace fenwick::bench
