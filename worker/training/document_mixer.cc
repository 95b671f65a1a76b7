#include "worker/training/document_mixer.h"

#include <algorithm>

#include "kernels/backward/summary.h"
#include "worker/layer_steps.h"

namespace fenwick {

void DocumentMixer::forward(const MixerInputs& inputs, MatrixView<float> o, Arena& workspace) {
    const std::int64_t floats = summary_floats(shape_);
    // Without other ranks nothing reads the last block's summary, whole or not.
    const std::int64_t blocks = document_.over_ranks ? document_.schedule.shard(group_.rank()).size()
                                                     : std::max<std::int64_t>(document_.shard.blocks - 1, 0);
    summaries_ = arena_.matrix(blocks, floats);
    if (blocks > 0) summarise_blocks(shape_, inputs, summaries_, workspace, threads_);
    entering_ = NodeSummaries(floats, 0);
    if (document_.over_ranks) exchange();
    mix_shard(shape_, inputs, document_.shard, entering_, summaries_, o, workspace, threads_);
}

void DocumentMixer::exchange() {
    const CombineFunction combine = [&](const float* left, const float* right, float* merged) {
        combine_summaries(shape_, left, right, merged, threads_);
    };
    HostSummaries lists(combine);
    const std::int64_t first = document_.schedule.shard(group_.rank()).first;
    cover_scratch_ = arena_.take(cover_scratch_floats(summaries_.rows, summaries_.cols));
    NodeSummaries own = cover_of_blocks(first, summaries_, lists, cover_scratch_);
    ExchangeResult result =
        run_exchange(document_.schedule, group_, std::move(own), NodeSummaries(summaries_.cols, 0), combine, &tape_);
    entering_ = std::move(result.entering);
}

void DocumentMixer::backward(const MixerInputs& inputs, MatrixView<const float> d_o, const MixerGradients& gradients,
                             Arena& workspace) {
    const std::int64_t floats = summary_floats(shape_);
    const std::int64_t blocks = summaries_.rows;
    const MatrixView<float> d_summaries = workspace.matrix(blocks, floats);
    zero_rows(d_summaries);
    const MatrixView<float> d_nodes = workspace.matrix(entering_.size(), floats);
    zero_rows(d_nodes);
    std::vector<float*> d_entering;
    for (std::int64_t i = 0; i < d_nodes.rows; ++i) d_entering.push_back(d_nodes.row(i));
    const Shard& shard = document_.shard;
    const std::int64_t last_block = shard.first_block + std::max<std::int64_t>(shard.blocks, 1) - 1;
    float* memory =
        workspace.take(threads_ * mixer_backward_workspace_floats(shape_, std::max(blocks, shard.blocks), last_block));
    if (d_o.rows > 0) {
        mixer_outputs_backward(shape_, inputs, shard.first_block, entering_nodes(entering_), summaries_.data, d_o,
                               gradients, d_entering, d_summaries.data, threads_, memory);
    }
    if (document_.over_ranks) exchange_backward(d_entering, d_summaries, workspace);
    if (blocks == 0) return;
    mixer_block_summaries_backward(shape_, inputs, blocks, d_summaries.data, gradients, threads_, memory);
}

void DocumentMixer::exchange_backward(const std::vector<float*>& d_entering, MatrixView<float> d_summaries,
                                      Arena& workspace) {
    const CombineBackwardFunction combine_backward = [&](const float* left, const float* right, const float* d_out,
                                                         float* d_left, float* d_right) {
        combine_summaries_backward(shape_, left, right, d_out, d_left, d_right, threads_);
    };
    const std::vector<const float*> given(d_entering.begin(), d_entering.end());
    const NodeSummaries d_cover = run_exchange_backward(tape_, group_, combine_backward, given);
    HostSummaryGradients gradients(combine_backward);
    cover_of_blocks_backward(tape_.own_cover.blocks().first, summaries_, cover_scratch_, d_cover, gradients,
                             workspace.take(cover_scratch_floats(summaries_.rows, summaries_.cols)), d_summaries);
}

}  // namespace fenwick
