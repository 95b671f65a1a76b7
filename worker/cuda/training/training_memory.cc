#include "worker/cuda/training/training_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "core/fenwick.h"
#include "kernels/convolution.h"
#include "kernels/cuda/backward/bias.h"
#include "kernels/cuda/backward/convolution.h"
#include "kernels/cuda/backward/cross_entropy.h"
#include "kernels/cuda/backward/embedding.h"
#include "kernels/cuda/backward/gates.h"
#include "kernels/cuda/backward/mixer.h"
#include "kernels/cuda/backward/norm.h"
#include "kernels/cuda/backward/read_out.h"
#include "parallel/collectives.h"
#include "parallel/cuda/device_collectives.h"
#include "parallel/node_summaries.h"
#include "worker/training/recompute_plan.h"

namespace fenwick::cuda {
namespace {

constexpr std::int64_t kAlignment = 1024;

class Places {
public:
    Places(unsigned char* base, std::int64_t used) : base_(base), used_(used) {}
    template <class T = void>
    T* take(std::int64_t bytes) {
        unsigned char* at = base_ == nullptr ? nullptr : base_ + used_;
        used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
        return reinterpret_cast<T*>(at);
    }
    [[nodiscard]] std::int64_t used() const { return used_; }

private:
    unsigned char* base_;
    std::int64_t used_;
};

/// Groups and widths that ask for the most workspace of the read-out.
ReadOut widest_read_out(const TokenMixer& mixer, std::int64_t rows) {
    ReadOut call;
    call.rows = rows;
    call.channels = mixer.shape().heads * mixer.shape().value_dim;
    std::visit(
        [&](const auto& steps) {
            using Steps = std::decay_t<decltype(steps)>;
            call.weight = steps.norm;
            if constexpr (std::is_same_v<Steps, Mamba2Steps>) {
                call.x = call.gate = call.skip = steps.skip;  // there are some: nothing is read
                call.skip_channels = steps.inner / steps.skip_count;
                call.group_size = steps.inner / mixer.shape().key_heads;
                call.weight_period = steps.inner;
                call.norm_before_gate = steps.norm_before_gate;
            } else {
                if (steps.use_gate) call.gate = steps.norm;
                call.group_size = call.weight_period = mixer.shape().value_dim;
                call.norm_before_gate = true;
            }
        },
        mixer.steps());
    return call;
}

std::int64_t row_workspace_bytes(const Model& model, Operand operand, std::int64_t rows) {
    const std::int64_t tile = std::min(rows, kTileRows);
    std::size_t bytes = cross_entropy_backward_workspace_bytes(operand, model.vocab_size());
    const auto raise = [&](std::initializer_list<std::size_t> others) { bytes = std::max({bytes, std::max(others)}); };
    raise({embed_rows_backward_workspace_bytes(rows, model.vocab_size()),
           rms_norm_backward_workspace_bytes(rows, model.hidden_size())});
    for (const LayerParts& layer : model.layers()) {
        const TokenMixer& mixer = *layer.mixer;
        const MixerShape& shape = mixer.shape();
        const Convolution convolution = mixer.convolution();
        raise({causal_convolution_backward_workspace_bytes(convolution.channels, convolution.width),
               gates_backward_workspace_bytes(shape.heads), gates_backward_workspace_bytes(shape.heads * shape.levels),
               l2_norm_backward_workspace_bytes(rows, shape.key_heads),
               read_out_backward_workspace_bytes(widest_read_out(mixer, tile)),
               add_bias_backward_workspace_bytes(std::max(mixer.in_proj().outputs, mixer.out_proj().outputs))});
    }
    return static_cast<std::int64_t>(bytes);
}

}  // namespace

TrainingMemory lay_out(const TrainingSizes& sizes, std::int64_t places, unsigned char* base) {
    const PassSizes& pass = sizes.pass;
    const std::int64_t rows = sizes.rows;
    const std::int64_t tile = std::min(rows, kTileRows);
    TrainingMemory memory;
    memory.pass = lay_out(pass, rows, sizes.mixer_workspace, base);
    Places at(base, memory.pass.bytes);
    memory.positions = at.take<std::int32_t>(rows * 4);
    memory.d = at.take<float>(rows * pass.hidden * 4);
    memory.raw_gates = at.take<float>(rows * pass.gates * 4);
    memory.d_gates = at.take<float>(rows * pass.gates * 4);
    memory.d_log_decay = at.take<float>(rows * pass.heads * 4);
    memory.d_convolved = at.take<float>(rows * pass.convolved * 4);
    memory.d_v = at.take<float>(rows * pass.values * 4);
    memory.d_summaries = at.take<float>(rows / kBlockTokens * pass.summary * 4);
    memory.d_node_scratch = at.take<float>(cover_scratch_floats(rows / kBlockTokens, pass.summary) * 4);
    memory.tile_x = at.take<float>(tile * pass.hidden * 4);
    memory.tile_normed = at.take(tile * pass.hidden * pass.element);
    memory.tile_d = at.take(tile * pass.hidden * pass.element);
    memory.tile_d_normed = at.take<float>(tile * pass.hidden * 4);
    memory.tile_y = at.take(tile * pass.values * pass.element);
    memory.tile_d_y = at.take(tile * pass.values * pass.element);
    memory.tile_d_gate = at.take(tile * pass.values * pass.element);
    memory.tile_inner = at.take(tile * pass.intermediate * pass.element);
    memory.unused = at.take<float>(pass.convolved * kMaxConvolutionWidth * 4);
    memory.row_workspace = at.take(sizes.row_workspace);
    memory.kept = at.take<float>(places * rows * pass.hidden * 4);
    memory.bytes = at.used();
    return memory;
}

TrainingSizes training_sizes(const Model& model, Operand operand, std::int64_t rows, std::int64_t first_block) {
    TrainingSizes sizes;
    sizes.pass = pass_sizes(model, operand);
    sizes.rows = (rows + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
    sizes.row_workspace = row_workspace_bytes(model, operand, sizes.rows);
    for (const LayerParts& layer : model.layers()) {
        const MixerShape& shape = layer.mixer->shape();
        sizes.mixer_workspace =
            std::max(sizes.mixer_workspace,
                     static_cast<std::int64_t>(mixer_backward_workspace_bytes(shape, operand, rows, first_block)));
    }
    return sizes;
}

std::int64_t places_that_fit(const TrainingSizes& sizes, std::int64_t left) {
    const std::int64_t input = sizes.rows * sizes.pass.hidden * 4;
    const std::int64_t without = lay_out(sizes, 0, nullptr).bytes;
    if (left < without || input == 0) return 0;
    return std::min((left - without) / input, sizes.pass.layers);
}

TrainingPlan plan_training(const Model& model, Operand operand, std::int64_t rows, int ranks, std::int64_t budget) {
    const TrainingSizes sizes = training_sizes(model, operand, rows, 0);
    const std::int64_t n = model.parameter_count();
    TrainingPlan plan;
    plan.parameters = n;
    plan.weights_bytes = gpu_weight_bytes(model, operand);
    // Gradients of all; own slices of values and two moments, and of the gradients' sum where there are others.
    const std::int64_t slice = slice_of(n, ranks, 0).size;
    plan.optimiser_bytes = 4 * (n + slice * (ranks > 1 ? 4 : 3)) + DeviceCollectives::bytes(n, ranks);
    plan.mixer_bytes = sizes.mixer_workspace;
    plan.pass_bytes = lay_out(sizes, 0, nullptr).bytes;
    plan.input_bytes = sizes.rows * sizes.pass.hidden * 4;
    plan.places = places_that_fit(sizes, budget - plan.weights_bytes - plan.optimiser_bytes);
    if (plan.places >= 1) plan.layer_runs = steps_run(plan_recompute(sizes.pass.layers + 1, plan.places));
    return plan;
}

std::string TrainingPlan::text() const {
    constexpr double kGiB = 1 << 30;
    const auto gib = [&](std::int64_t bytes) { return static_cast<double>(bytes) / kGiB; };
    return fmt::format(
        "{:.0f} M parameters: weights {:.2f} GiB, gradients and optimiser {:.2f} GiB; a pass {:.2f} GiB (of it mixers "
        "{:.2f}), {} kept inputs of {:.2f} GiB; {:.2f} GiB in all, {} layer runs before the way back",
        static_cast<double>(parameters) / 1e6, gib(weights_bytes), gib(optimiser_bytes), gib(pass_bytes),
        gib(mixer_bytes), places, gib(input_bytes), gib(total()), layer_runs);
}

}  // namespace fenwick::cuda
