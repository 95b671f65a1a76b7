#include "worker/cuda/training/run_mixer.h"

#include <memory>
#include <utility>

#include "parallel/cuda/device_gradients.h"

namespace fenwick::cuda {
namespace {

void zero(float* values, std::int64_t floats, cudaStream_t stream) {
    if (floats == 0) return;
    FENWICK_CUDA_CHECK(cudaMemsetAsync(values, 0, static_cast<std::size_t>(floats) * sizeof(float), stream));
}

}  // namespace

MatrixView<const float> RunMixer::summaries() const {
    return {memory_.summaries, run_.complete, summary_floats(shape_)};
}

ShardNodes RunMixer::shard_nodes() const {
    ShardNodes nodes{memory_.summaries};
    if (run_.shard != nullptr) {
        nodes.above = memory_.node_scratch;
        nodes.above_blocks = run_.complete;
    }
    return nodes;
}

std::vector<EnteringNode> RunMixer::entering_nodes() const {
    std::vector<EnteringNode> nodes;
    for (std::int64_t i = 0; i < entering_.size(); ++i) nodes.push_back({entering_.node(i).bit, entering_.values(i)});
    return nodes;
}

void RunMixer::forward(const MixerInputs& inputs, void* o) {
    const std::int64_t floats = summary_floats(shape_);
    // Nobody reads A of block 0, and it need not be formed; on the way back it is multiplied by gradients that are 0.
    if (run_.first_block == 0 && run_.complete > 0) zero(memory_.summaries, floats, stream_);
    if (run_.complete > 0) {
        mixer_block_summaries(shape_, operand_, inputs, run_.first_block, run_.complete, memory_.summaries,
                              memory_.workspace, stream_);
    }
    entering_ = NodeSummaries(floats, run_.first_block);
    if (run_.shard != nullptr) {
        DeviceSummaries combining(shape_, exchange_.pool(), stream_);
        const std::int64_t first = run_.shard->schedule.shard(exchange_.comm().rank()).first;
        NodeSummaries own = cover_of_blocks(first, summaries(), combining, memory_.node_scratch);
        entering_ = exchange_.entering(layer_, shape_, *run_.shard, std::move(own), tape_);
    }
    if (run_.rows == 0) return;
    mixer_prepare_outputs(shape_, operand_, inputs, run_.first_block, run_.complete > 0, memory_.workspace, stream_);
    mixer_outputs(shape_, operand_, inputs, run_.first_block, entering_nodes(), shard_nodes(), o, memory_.workspace,
                  stream_);
}

void RunMixer::backward(const MixerInputs& inputs, const void* d_o, const MixerGradients& gradients, bool alone) {
    const std::int64_t floats = summary_floats(shape_);
    const std::int64_t d_o_stride = shape_.heads * shape_.value_dim;
    zero(memory_.d_summaries, run_.complete * floats, stream_);
    std::vector<std::shared_ptr<SummaryBuffer>> d_nodes;
    std::vector<float*> d_entering;
    for (std::int64_t i = 0; i < entering_.size(); ++i) {
        d_entering.push_back(d_nodes.emplace_back(exchange_.lend(floats))->data());
        zero(d_entering.back(), floats, stream_);
    }
    if (run_.rows > 0) {
        mixer_outputs_backward(shape_, operand_, inputs, run_.first_block, entering_nodes(), shard_nodes(), d_o,
                               d_o_stride, gradients, d_entering, memory_.d_summaries, alone, memory_.workspace,
                               stream_);
    }
    if (run_.shard != nullptr) {
        const std::vector<const float*> given(d_entering.begin(), d_entering.end());
        const NodeSummaries d_cover = exchange_.entering_backward(layer_, shape_, tape_, given);
        DeviceSummaryGradients adding(shape_, stream_);
        cover_of_blocks_backward(tape_.own_cover.blocks().first, summaries(), memory_.node_scratch, d_cover, adding,
                                 memory_.d_node_scratch, {memory_.d_summaries, run_.complete, floats});
    }
    if (run_.rows == 0) return;
    mixer_block_summaries_backward(shape_, operand_, inputs, run_.first_block, d_o, d_o_stride, run_.complete,
                                   memory_.d_summaries, gradients, memory_.workspace, stream_);
}

}  // namespace fenwick::cuda
