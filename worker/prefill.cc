#include "worker/prefill.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"

namespace fenwick {
namespace {

std::vector<std::int64_t> rows_per_rank(const ShardPlan& plan) {
    std::vector<std::int64_t> rows;
    rows.reserve(plan.shards.size());
    for (const Shard& shard : plan.shards) rows.push_back(shard.tokens);
    return rows;
}

}  // namespace

Prefill::Prefill(std::shared_ptr<const Model> model, Communicator& comm, int threads)
    : model_(std::move(model)), comm_(comm), threads_(threads) {
    initialise_blas();
    reset();
}

void Prefill::reset() {
    carries_.clear();
    for (const LayerParts& layer : model_->layers()) {
        LayerCarry carry;
        carry.nodes = NodeSummaries(summary_floats(layer.mixer->shape()), 0);
        if (comm_.rank() == 0) carry.conv_rows = Buffer<float>(layer.mixer->halo_rows() * layer.mixer->conv_channels());
        std::fill(carry.conv_rows.begin(), carry.conv_rows.end(), 0.0F);
        carries_.push_back(std::move(carry));
    }
}

MatrixView<const float> Prefill::forward(const ShardPlan& plan, std::span<const std::int32_t> tokens) {
    const auto rows = static_cast<std::int64_t>(tokens.size());
    const std::int64_t hidden = model_->hidden_size();
    if (rows != plan.shard(comm_.rank()).tokens) throw InternalError("prefill: tokens do not fit the shard plan");
    const ExchangeSchedule schedule = make_exchange_schedule(plan.complete_block_boundaries());
    if (x_.size() < rows * hidden) x_ = Buffer<float>(rows * hidden);
    const MatrixView<float> x = x_.matrix(rows, hidden);
    embed_rows(model_->embeddings(), tokens.data(), x, threads_);
    for (std::size_t i = 0; i < carries_.size(); ++i) {
        comm_.status().set_place(static_cast<std::int32_t>(i), "");
        run_layer(model_->layers()[i], carries_[i], plan, schedule, x);
    }
    arena_.reset();
    rms_norm(x, model_->final_norm(), model_->norm_eps(), x, threads_);
    hidden_ = x;
    return hidden_;
}

void Prefill::run_pass(const ShardPlan& plan, std::span<const std::int32_t> tokens,
                       std::span<const std::int32_t> targets, std::span<float> nll) {
    forward(plan, tokens);
    if (!targets.empty()) losses(targets, nll);
}

void Prefill::losses(std::span<const std::int32_t> targets, std::span<float> nll) {
    const auto rows = static_cast<std::int64_t>(targets.size());
    float* workspace = arena_.take(cross_entropy_workspace_floats(model_->hidden_size(), threads_));
    cross_entropy(hidden_.row_range(0, rows), model_->lm_head(), targets.data(), nll.data(), threads_, workspace);
    arena_.reset();
}

void Prefill::run_layer(const LayerParts& layer, LayerCarry& carry, const ShardPlan& plan,
                        const ExchangeSchedule& schedule, MatrixView<float> x) {
    const TokenMixer& mixer = *layer.mixer;
    const Linear& in = mixer.in_proj();
    const Linear& out = mixer.out_proj();
    arena_.reset();
    float* workspace = arena_.take(
        std::max(matmul_workspace_floats(in.inputs, in.outputs), matmul_workspace_floats(out.inputs, out.outputs)));
    const MatrixView<float> normed = arena_.matrix(x.rows, x.cols);
    rms_norm(x, layer.mixer_norm.data(), model_->norm_eps(), normed, threads_);
    const MatrixView<float> projected = arena_.matrix(x.rows, in.outputs);
    matmul_rows(normed, in.matrix(), projected, in.bias_or_null(), false, threads_, workspace);

    const MatrixView<float> convolved = convolve(mixer, carry, plan, projected);
    const MixerInputs inputs = mixer.gates(projected, convolved, arena_, threads_);
    const MatrixView<float> o = mix(mixer, carry, plan.shard(comm_.rank()), schedule, inputs);
    mixer.read_out(projected, convolved, o, threads_);
    matmul_rows(o, out.matrix(), x, out.bias_or_null(), true, threads_, workspace);
    if (layer.mlp == nullptr) return;
    rms_norm(x, layer.mlp_norm.data(), model_->norm_eps(), normed, threads_);
    layer.mlp->forward(normed, x, arena_, threads_);
}

MatrixView<float> Prefill::convolve(const TokenMixer& mixer, LayerCarry& carry, const ShardPlan& plan,
                                    MatrixView<float> projected) {
    const std::int64_t channels = mixer.conv_channels();
    const std::int64_t halo_rows = mixer.halo_rows();
    const MatrixView<float> conv_input = projected.col_range(mixer.conv_first(), channels);
    const MatrixView<float> halo = arena_.matrix(halo_rows, channels);
    if (halo_rows > 0) {
        const HaloPlan halos = plan_halo(rows_per_rank(plan), static_cast<int>(halo_rows), plan.first_token);
        Buffer<float> next;
        MatrixView<float> carried_out;
        MatrixView<const float> carried;
        if (comm_.rank() == 0) {
            next = Buffer<float>(halo_rows * channels);
            carried_out = next.matrix(halo_rows, channels);
            carried = carry.conv_rows.matrix(halo_rows, channels);
        }
        exchange_halo(halos, comm_, conv_input, carried, halo, carried_out);
        carry.conv_rows = std::move(next);
    }
    const MatrixView<float> convolved = arena_.matrix(projected.rows, channels);
    causal_convolution(mixer.convolution(), halo, conv_input, convolved, threads_);
    return convolved;
}

MatrixView<float> Prefill::mix(const TokenMixer& mixer, LayerCarry& carry, const Shard& shard,
                               const ExchangeSchedule& schedule, const MixerInputs& inputs) {
    const MixerShape& shape = mixer.shape();
    const std::int64_t floats = summary_floats(shape);
    const std::int64_t complete = schedule.shard(comm_.rank()).size();
    const MatrixView<float> summaries = arena_.matrix(complete, floats);
    float* workspace = arena_.take(
        threads_ * mixer_workspace_floats(shape, shard.first_block + std::max<std::int64_t>(shard.blocks, 1) - 1));
    mixer_block_summaries(shape, inputs, complete, summaries.data, threads_, workspace);

    const CombineFunction combine = [&](const float* left, const float* right, float* merged) {
        combine_summaries(shape, left, right, merged, threads_);
    };
    HostSummaries lists(combine);
    NodeSummaries own = cover_of_blocks(schedule.shard(comm_.rank()).first, summaries, lists,
                                        arena_.take(cover_scratch_floats(complete, floats)));
    ExchangeResult result = run_exchange(schedule, comm_, std::move(own), carry.nodes, combine);
    carry.nodes = std::move(result.end);

    std::vector<EnteringNode> entering;
    for (std::int64_t i = 0; i < result.entering.size(); ++i) {
        entering.push_back({result.entering.node(i).bit, result.entering.values(i)});
    }
    const MatrixView<float> o = arena_.matrix(inputs.v.rows, shape.heads * shape.value_dim);
    if (o.rows > 0) {
        mixer_outputs(shape, inputs, shard.first_block, entering, summaries.data, o, threads_, workspace);
    }
    return o;
}

}  // namespace fenwick
