// Mamba-2 and log-linear Mamba-2 (flash-linear-attention's mamba2 and log_linear_mamba2).
//
// in_proj's columns: z [inner], x [inner], B [groups * state], C [groups * state], dt [heads], and, log-linear, dl
// [heads * levels]. q = C, k = B, v = x dt, log decay = -exp(A_log) dt, lambda = softplus(L dl); o += D x; the gate
// stands before the norm unless norm_before_gate.
#include <cmath>
#include <limits>

#include "kernels/activations.h"
#include "kernels/backward/activations.h"
#include "kernels/backward/gates.h"
#include "kernels/backward/norm.h"
#include "kernels/gates.h"
#include "kernels/norm.h"
#include "worker/families/families.h"

namespace fenwick {
namespace {

class Mamba2Mixer final : public TokenMixer {
public:
    Mamba2Mixer(const WeightReader& weights, bool log_linear) {
        const ConfigReader& config = weights.config();
        const std::int64_t hidden = config.require_int("hidden_size");
        const std::int64_t head_dim = config.get_int("head_dim", 64);
        require_positive(config, "head_dim", head_dim);
        // heads * head_dim is the inner width, whatever expand says: published configurations disagree on the latter.
        const double expand = config.get_double("expand", 2);
        std::int64_t heads = config.get_int("num_heads", 0);
        if (heads == 0) heads = static_cast<std::int64_t>(expand * static_cast<double>(hidden)) / head_dim;
        require_positive(config, "num_heads", heads);
        const std::int64_t groups = config.get_int("n_groups", 1);
        const std::int64_t state = config.get_int("state_size", 128);
        require_positive(config, "n_groups", groups);
        require_positive(config, "state_size", state);
        if (heads % groups != 0) config.fail("n_groups", "a divisor of the " + std::to_string(heads) + " heads");
        require_silu(config);

        inner_ = heads * head_dim;
        shape_ = {TransitionAlgebra::kScalar, heads, groups, state, head_dim, 0};
        if (log_linear) {
            const std::vector<std::int64_t>& levels = weights.shape("L");
            shape_.levels = levels.size() == 2 ? levels[1] : 0;
            level_scale_ = weights.load("L", {heads, std::max<std::int64_t>(shape_.levels, 1)});
        }
        const std::int64_t conv_channels = inner_ + 2 * groups * state;
        const bool bias = config.get_bool("use_bias", false);
        gates_first_ = inner_ + conv_channels;
        in_proj_ = weights.linear("in_proj", inner_ + conv_channels + heads * (1 + shape_.levels), hidden, bias);
        out_proj_ = weights.linear("out_proj", hidden, inner_, bias);
        const bool conv_bias = config.get_bool("use_conv_bias", true);
        set_convolution(inner_, conv_channels, read_conv_width(config, "conv_kernel"), conv_bias);
        load_convolution(weights, "conv1d", 0, conv_channels, conv_bias);

        dt_bias_ = weights.load("dt_bias", {heads});
        a_log_ = weights.load("A_log", {heads});
        skip_ = weights.load("D", {config.get_bool("D_has_hdim", false) ? inner_ : heads});
        read_dt_limit(config);
        norm_before_gate_ = config.get_bool("norm_before_gate", false);
        norm_eps_ = static_cast<float>(config.get_double("norm_eps", 1e-5));
        if (config.get_bool("rmsnorm", true)) norm_ = weights.load("norm.weight", {inner_});
    }

    MixerInputs gates(MatrixView<float> gate_rows, MatrixView<float> convolved, Arena& arena,
                      int threads) const override {
        const std::int64_t rows = gate_rows.rows;
        const std::int64_t heads = shape_.heads;
        const std::int64_t keys = shape_.key_heads * shape_.key_dim;
        const MatrixView<float> dt = gate_rows.col_range(0, heads);
        const MatrixView<float> log_decay = arena.matrix(rows, heads);
        const MatrixView<float> v = arena.matrix(rows, inner_);
        mamba2_gates(step_gates(), dt, dt, log_decay, threads);
        scale_heads(convolved.col_range(0, inner_), dt, v, threads);
        MixerInputs inputs;
        inputs.k = convolved.col_range(inner_, keys);
        inputs.q = convolved.col_range(inner_ + keys, keys);
        inputs.v = v;
        inputs.log_decay = log_decay;
        if (shape_.log_linear()) {
            const MatrixView<float> dl = gate_rows.col_range(heads, heads * shape_.levels);
            level_scales(level_scale_.data(), dl, dl, threads);
            inputs.lambda = dl;
        }
        return inputs;
    }

    void read_out(MatrixView<const float> projected, MatrixView<const float> convolved, MatrixView<float> o,
                  int threads) const override {
        add_skip(skip_.data(), skip_.size(), convolved.col_range(0, inner_), o, threads);
        const MatrixView<const float> z = projected.col_range(0, inner_);
        if (norm_.size() == 0) return swiglu(z, o, o, threads);
        gated_rms_norm(o, z, output_norm(), norm_before_gate_, o, threads);
    }

    void read_out_backward(MatrixView<const float> projected, MatrixView<const float> convolved, MatrixView<float> o,
                           MatrixView<float> d_y, MatrixView<float> d_projected, MatrixView<float> d_convolved,
                           Gradients& gradients, Arena& arena, int threads) const override {
        const MatrixView<const float> x = convolved.col_range(0, inner_);
        const MatrixView<const float> z = projected.col_range(0, inner_);
        const MatrixView<float> d_z = d_projected.col_range(0, inner_);
        add_skip(skip_.data(), skip_.size(), x, o, threads);
        if (norm_.size() == 0) {
            swiglu_backward(z, o, d_y, d_z, o, threads);
            copy_rows(o, d_y);
        } else {
            gated_rms_norm_backward(o, z, output_norm(), norm_before_gate_, d_y, d_y, d_z, gradients.of(norm_.data()),
                                    threads, arena.take(norm_backward_workspace_floats(inner_)));
        }
        add_skip_backward(skip_.data(), skip_.size(), x, d_y, d_convolved.col_range(0, inner_),
                          gradients.of(skip_.data()), threads,
                          arena.take(gates_backward_workspace_floats(skip_.size())));
    }

    [[nodiscard]] MixerGradients input_gradients(MatrixView<float> d_projected, MatrixView<float> d_convolved,
                                                 Arena& arena) const override {
        const std::int64_t keys = shape_.key_heads * shape_.key_dim;
        MixerGradients inputs;
        inputs.k = d_convolved.col_range(inner_, keys);
        inputs.q = d_convolved.col_range(inner_ + keys, keys);
        inputs.v = arena.matrix(d_projected.rows, inner_);
        inputs.log_decay = arena.matrix(d_projected.rows, shape_.heads);
        if (shape_.log_linear()) {
            inputs.lambda = d_projected.col_range(gates_first_ + shape_.heads, shape_.heads * shape_.levels);
        }
        for (const MatrixView<float>& each : {inputs.k, inputs.q, inputs.v, inputs.log_decay, inputs.lambda}) {
            zero_rows(each);
        }
        return inputs;
    }

    void gates_backward(MatrixView<const float> projected, MatrixView<const float> convolved,
                        const MixerGradients& inputs, MatrixView<float> d_projected, MatrixView<float> d_convolved,
                        Gradients& gradients, Arena& arena, int threads) const override {
        const std::int64_t heads = shape_.heads;
        const MatrixView<const float> raw = projected.col_range(gates_first_, heads);
        const MatrixView<float> dt = arena.matrix(projected.rows, heads);
        const MatrixView<float> log_decay = arena.matrix(projected.rows, heads);
        const MatrixView<float> d_dt = d_projected.col_range(gates_first_, heads);
        mamba2_gates(step_gates(), raw, dt, log_decay, threads);
        scale_heads_backward(convolved.col_range(0, inner_), dt, inputs.v, d_convolved.col_range(0, inner_), true, d_dt,
                             threads);
        float* workspace =
            arena.take(gates_backward_workspace_floats(heads * std::max(shape_.levels, kGateParameters)));
        mamba2_gates_backward(step_gates(), raw, d_dt, inputs.log_decay, d_dt, gradients.of(dt_bias_.data()),
                              gradients.of(a_log_.data()), threads, workspace);
        if (!shape_.log_linear()) return;
        level_scales_backward(level_scale_.data(), projected.col_range(gates_first_ + heads, heads * shape_.levels),
                              inputs.lambda, inputs.lambda, gradients.of(level_scale_.data()), threads, workspace);
    }

    [[nodiscard]] MixerSteps steps() const override {
        Mamba2Steps steps;
        steps.gates = step_gates();
        steps.level_scale = level_scale_.data();
        steps.skip = skip_.data();
        steps.skip_count = skip_.size();
        steps.norm = norm_.data();
        steps.norm_eps = norm_eps_;
        steps.norm_before_gate = norm_before_gate_;
        steps.inner = inner_;
        steps.gates_first = gates_first_;
        return steps;
    }

    void list_parameters(const ParameterList& list) override {
        const std::int64_t heads = shape_.heads;
        list.add_linear("in_proj", in_proj_);
        list_convolutions(list);
        list.add("dt_bias", {heads}, dt_bias_.data(), false);
        list.add("A_log", {heads}, a_log_.data(), false);
        list.add("D", {skip_.size()}, skip_.data(), false);
        if (shape_.log_linear()) list.add("L", {heads, shape_.levels}, level_scale_.data(), false);
        if (norm_.size() > 0) list.add("norm.weight", {inner_}, norm_.data(), false);
        list.add_linear("out_proj", out_proj_);
    }

private:
    static constexpr std::int64_t kGateParameters = 2;  // dt_bias and A_log, a value a head

    [[nodiscard]] Mamba2Gates step_gates() const { return {dt_bias_.data(), a_log_.data(), dt_min_, dt_max_}; }
    [[nodiscard]] GroupNorm output_norm() const { return {inner_ / shape_.key_heads, norm_.data(), inner_, norm_eps_}; }

    void read_dt_limit(const ConfigReader& config) {
        const char* name = config.is_null("dt_limit") ? "time_step_limit" : "dt_limit";
        const std::vector<double> limit = config.get_doubles(name);
        if (limit.empty()) return;
        if (limit.size() != 2 || !(limit[0] >= 0) || !(limit[1] >= limit[0])) {
            config.fail(name, "two numbers 0 <= low <= high");
        }
        dt_min_ = static_cast<float>(limit[0]);
        dt_max_ = static_cast<float>(limit[1]);
    }

    std::int64_t inner_ = 0;
    float dt_min_ = 0.0F;
    float dt_max_ = std::numeric_limits<float>::infinity();
    bool norm_before_gate_ = false;
    float norm_eps_ = 1e-5F;
    Buffer<float> level_scale_;  // L [heads, levels]
    Buffer<float> dt_bias_;      // [heads]
    Buffer<float> a_log_;        // [heads]
    Buffer<float> skip_;         // D [heads] or [inner]
    Buffer<float> norm_;         // [inner], empty without rmsnorm
};

LayerParts mamba2_layer(const WeightReader& layer, bool log_linear) {
    const ConfigReader& config = layer.config();
    const std::int64_t hidden = config.require_int("hidden_size");
    LayerParts parts;
    parts.mixer_norm_name = log_linear ? "mixer_norm.weight" : "norm.weight";
    parts.mixer_norm = layer.load(parts.mixer_norm_name, {hidden});
    parts.mixer_prefix = "mixer.";
    parts.mixer = std::make_unique<Mamba2Mixer>(layer.under(parts.mixer_prefix), log_linear);
    if (log_linear) {
        parts.mlp_norm = layer.load("mlp_norm.weight", {hidden});
        parts.mlp = std::make_unique<GatedMlp>(layer.under("mlp."), hidden, 4, 0);
    }
    return parts;
}

}  // namespace

Family mamba2_family() {
    return {"mamba2", "backbone.", "norm_f.weight", 1e-5,
            [](const WeightReader& layer) { return mamba2_layer(layer, false); }};
}

Family log_linear_mamba2_family() {
    return {"log_linear_mamba2", "backbone.", "norm_f.weight", 1e-5,
            [](const WeightReader& layer) { return mamba2_layer(layer, true); }};
}

}  // namespace fenwick
