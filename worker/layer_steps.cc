#include "worker/layer_steps.h"

#include <algorithm>

#include "kernels/matmul.h"
#include "kernels/norm.h"

namespace fenwick {
namespace {

// y = x W^T + bias, or y += that.
void multiply(const Linear& linear, MatrixView<const float> x, MatrixView<float> y, bool accumulate, Arena& arena,
              int threads) {
    float* workspace = arena.take(matmul_workspace_floats(linear.inputs, linear.outputs));
    matmul_rows(x, linear.matrix(), y, linear.bias_or_null(), accumulate, threads, workspace);
}

}  // namespace

void project_rows(const LayerParts& layer, float eps, MatrixView<const float> x, MatrixView<float> normed,
                  MatrixView<float> projected, Arena& arena, int threads) {
    rms_norm(x, layer.mixer_norm.data(), eps, normed, threads);
    multiply(layer.mixer->in_proj(), normed, projected, false, arena, threads);
}

void add_mixed_rows(const LayerParts& layer, MatrixView<const float> y, MatrixView<float> x, Arena& arena,
                    int threads) {
    multiply(layer.mixer->out_proj(), y, x, true, arena, threads);
}

void add_mlp_rows(const LayerParts& layer, float eps, MatrixView<float> normed, MatrixView<float> x, Arena& arena,
                  int threads) {
    if (layer.mlp == nullptr) return;
    rms_norm(x, layer.mlp_norm.data(), eps, normed, threads);
    layer.mlp->forward(normed, x, arena, threads);
}

HaloPlan plan_halo(const ShardPlan& plan, const TokenMixer& mixer) {
    std::vector<std::int64_t> rows;
    rows.reserve(plan.shards.size());
    for (const Shard& shard : plan.shards) rows.push_back(shard.tokens);
    return plan_halo(rows, static_cast<int>(mixer.halo_rows()), plan.first_token);
}

void convolve_shard(const TokenMixer& mixer, const HaloPlan& halos, Communicator& comm,
                    MatrixView<const float> projected, MatrixView<const float> carried, MatrixView<float> carried_out,
                    MatrixView<float> halo, MatrixView<float> convolved, int threads) {
    const MatrixView<const float> input = projected.col_range(mixer.conv_first(), mixer.conv_channels());
    if (mixer.halo_rows() > 0) exchange_halo(halos, comm, input, carried, halo, carried_out);
    causal_convolution(mixer.convolution(), halo, input, convolved, threads);
}

void summarise_blocks(const MixerShape& shape, const MixerInputs& inputs, MatrixView<float> summaries, Arena& arena,
                      int threads) {
    float* workspace = arena.take(threads * mixer_workspace_floats(shape, 0));
    mixer_block_summaries(shape, inputs, summaries.rows, summaries.data, threads, workspace);
}

void mix_shard(const MixerShape& shape, const MixerInputs& inputs, const Shard& shard, const NodeSummaries& entering,
               MatrixView<const float> summaries, MatrixView<float> o, Arena& arena, int threads) {
    if (o.rows == 0) return;
    const std::int64_t last_block = shard.first_block + shard.blocks - 1;
    float* workspace = arena.take(threads * mixer_workspace_floats(shape, last_block));
    mixer_outputs(shape, inputs, shard.first_block, entering_nodes(entering), summaries.data, o, threads, workspace);
}

std::vector<EnteringNode> entering_nodes(const NodeSummaries& list) {
    std::vector<EnteringNode> nodes;
    nodes.reserve(static_cast<std::size_t>(list.size()));
    for (std::int64_t i = 0; i < list.size(); ++i) nodes.push_back({list.node(i).bit, list.values(i)});
    return nodes;
}

}  // namespace fenwick
