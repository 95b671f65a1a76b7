#include "worker/prefill.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "worker/layer_steps.h"

namespace fenwick {
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

void Prefill::losses(std::span<const std::int32_t> targets, std::span<float> nll, std::uint8_t* most_likely) {
    const auto rows = static_cast<std::int64_t>(targets.size());
    float* workspace = arena_.take(cross_entropy_workspace_floats(model_->hidden_size(), threads_));
    cross_entropy(hidden_.row_range(0, rows), model_->lm_head(), targets.data(), nll.data(), threads_, workspace,
                  most_likely);
    arena_.reset();
}

void Prefill::run_layer(const LayerParts& layer, LayerCarry& carry, const ShardPlan& plan,
                        const ExchangeSchedule& schedule, MatrixView<float> x) {
    const TokenMixer& mixer = *layer.mixer;
    arena_.reset();
    const MatrixView<float> normed = arena_.matrix(x.rows, x.cols);
    const MatrixView<float> projected = arena_.matrix(x.rows, mixer.in_proj().outputs);
    project_rows(layer, model_->norm_eps(), x, normed, projected, arena_, threads_);
    const MatrixView<float> convolved = convolve(mixer, carry, plan, projected);
    const MatrixView<float> gate_rows = projected.col_range(mixer.gates_first(), mixer.gate_columns());
    const MixerInputs inputs = mixer.gates(gate_rows, convolved, arena_, threads_);
    const MatrixView<float> o = mix(mixer, carry, plan.shard(comm_.rank()), schedule, inputs);
    mixer.read_out(projected, convolved, o, threads_);
    add_mixed_rows(layer, o, x, arena_, threads_);
    add_mlp_rows(layer, model_->norm_eps(), normed, x, arena_, threads_);
}

MatrixView<float> Prefill::convolve(const TokenMixer& mixer, LayerCarry& carry, const ShardPlan& plan,
                                    MatrixView<float> projected) {
    const std::int64_t channels = mixer.conv_channels();
    const std::int64_t halo_rows = mixer.halo_rows();
    const MatrixView<float> halo = arena_.matrix(halo_rows, channels);
    const MatrixView<float> convolved = arena_.matrix(projected.rows, channels);
    Buffer<float> next;
    MatrixView<float> carried_out;
    MatrixView<const float> carried;
    if (comm_.rank() == 0) {
        next = Buffer<float>(halo_rows * channels);
        carried_out = next.matrix(halo_rows, channels);
        carried = std::as_const(carry.conv_rows).matrix(halo_rows, channels);
    }
    convolve_shard(mixer, plan_halo(plan, mixer), comm_, projected, carried, carried_out, halo, convolved, threads_);
    carry.conv_rows = std::move(next);
    return convolved;
}

MatrixView<float> Prefill::mix(const TokenMixer& mixer, LayerCarry& carry, const Shard& shard,
                               const ExchangeSchedule& schedule, const MixerInputs& inputs) {
    const MixerShape& shape = mixer.shape();
    const BlockRun own = schedule.shard(comm_.rank());
    const MatrixView<float> summaries = arena_.matrix(own.size(), summary_floats(shape));
    summarise_blocks(shape, inputs, summaries, arena_, threads_);
    const CombineFunction combine = [&](const float* left, const float* right, float* merged) {
        combine_summaries(shape, left, right, merged, threads_);
    };
    HostSummaries lists(combine);
    NodeSummaries cover =
        cover_of_blocks(own.first, summaries, lists, arena_.take(cover_scratch_floats(own.size(), summaries.cols)));
    ExchangeResult result = run_exchange(schedule, comm_, std::move(cover), carry.nodes, combine);
    carry.nodes = std::move(result.end);
    const MatrixView<float> o = arena_.matrix(inputs.v.rows, shape.heads * shape.value_dim);
    mix_shard(shape, inputs, shard, result.entering, summaries, o, arena_, threads_);
    return o;
}

}  // namespace fenwick
