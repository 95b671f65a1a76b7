// Gated DeltaNet (flash-linear-attention's gated_deltanet) and its log-linear form (h_gated_deltanet).
//
// One product gives q, k, v (which the convolution reads), the output gate g, a, b and, log-linear, dl.
// q and k are L2-normalised per head; q is scaled by 1 / sqrt(d_k) in the linear form only.
// log decay = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b), lambda = softplus(L dl); the norm stands before the
// gate.
#include <cmath>

#include "kernels/backward/gates.h"
#include "kernels/backward/norm.h"
#include "kernels/gates.h"
#include "kernels/norm.h"
#include "worker/families/families.h"

namespace fenwick {
namespace {

constexpr float kL2Epsilon = 1e-6F;

class GatedDeltaMixer final : public TokenMixer {
public:
    GatedDeltaMixer(const WeightReader& weights, bool log_linear) {
        const ConfigReader& config = weights.config();
        const std::int64_t hidden = config.require_int("hidden_size");
        const std::int64_t key_heads = config.get_int("num_heads", 6);
        const std::int64_t heads = config.get_int("num_v_heads", key_heads);
        const std::int64_t key_dim = config.get_int("head_dim", 256);
        require_positive(config, "num_heads", key_heads);
        require_positive(config, "num_v_heads", heads);
        require_positive(config, "head_dim", key_dim);
        if (heads % key_heads != 0) config.fail("num_v_heads", "a multiple of num_heads");
        const double value_dim = static_cast<double>(key_dim) * config.get_double("expand_v", 2.0);
        if (!(value_dim >= 1) || value_dim != std::floor(value_dim)) {
            config.fail("expand_v", "a factor that makes head_dim * expand_v a whole number");
        }
        require_absent(config, "attn", "hybrid layers with full attention");
        shape_ = {TransitionAlgebra::kMatrix, heads, key_heads, key_dim, static_cast<std::int64_t>(value_dim), 0};
        keys_ = key_heads * key_dim;
        values_ = heads * shape_.value_dim;
        if (log_linear) {
            const std::vector<std::int64_t>& levels = weights.shape("L");
            shape_.levels = levels.size() == 2 ? levels[1] : 0;
            level_scale_ = weights.load("L", {heads, std::max<std::int64_t>(shape_.levels, 1)});
        }
        load_projections(weights, hidden);
        load_convolutions(weights);
        out_proj_ = weights.linear("o_proj", hidden, values_);
        dt_bias_ = weights.load("dt_bias", {heads});
        a_log_ = weights.load("A_log", {heads});
        norm_ = weights.load("o_norm.weight", {shape_.value_dim});
        norm_eps_ = static_cast<float>(config.get_double("norm_eps", 1e-6));
        negative_eigenvalues_ = config.get_bool("allow_neg_eigval", false);
        query_scale_ = log_linear ? 1.0F : 1.0F / std::sqrt(static_cast<float>(key_dim));
    }

    MixerInputs gates(MatrixView<float> gate_rows, MatrixView<float> convolved, Arena& /*arena*/,
                      int threads) const override {
        const std::int64_t heads = shape_.heads;
        const MatrixView<float> q = convolved.col_range(0, keys_);
        const MatrixView<float> k = convolved.col_range(keys_, keys_);
        l2_norm(q, shape_.key_dim, kL2Epsilon, query_scale_, q, threads);
        l2_norm(k, shape_.key_dim, kL2Epsilon, 1.0F, k, threads);
        const MatrixView<float> a = gate_rows.col_range(0, heads);
        const MatrixView<float> b = gate_rows.col_range(heads, heads);
        delta_gates({dt_bias_.data(), a_log_.data(), negative_eigenvalues_}, a, b, a, b, threads);
        MixerInputs inputs;
        inputs.q = q;
        inputs.k = k;
        inputs.v = convolved.col_range(2 * keys_, values_);
        inputs.log_decay = a;
        inputs.beta = b;
        if (shape_.log_linear()) {
            const MatrixView<float> dl = gate_rows.col_range(2 * heads, heads * shape_.levels);
            level_scales(level_scale_.data(), dl, dl, threads);
            inputs.lambda = dl;
        }
        return inputs;
    }

    void read_out(MatrixView<const float> projected, MatrixView<const float> /*convolved*/, MatrixView<float> o,
                  int threads) const override {
        if (!use_gate_) return group_rms_norm(o, output_norm(), o, threads);
        gated_rms_norm(o, projected.col_range(2 * keys_ + values_, values_), output_norm(), true, o, threads);
    }

    void read_out_backward(MatrixView<const float> projected, MatrixView<const float> /*convolved*/,
                           MatrixView<float> o, MatrixView<float> d_y, MatrixView<float> d_projected,
                           MatrixView<float> /*d_convolved*/, Gradients& gradients, Arena& arena,
                           int threads) const override {
        float* workspace = arena.take(norm_backward_workspace_floats(values_));
        float* d_norm = gradients.of(norm_.data());
        if (!use_gate_) return group_rms_norm_backward(o, output_norm(), d_y, d_y, d_norm, threads, workspace);
        const std::int64_t gate = 2 * keys_ + values_;
        gated_rms_norm_backward(o, projected.col_range(gate, values_), output_norm(), true, d_y, d_y,
                                d_projected.col_range(gate, values_), d_norm, threads, workspace);
    }

    [[nodiscard]] MixerGradients input_gradients(MatrixView<float> d_projected, MatrixView<float> d_convolved,
                                                 Arena& /*arena*/) const override {
        const std::int64_t heads = shape_.heads;
        zero_rows(d_convolved);
        zero_rows(d_projected.col_range(gates_first_, gate_columns()));
        MixerGradients inputs;
        inputs.q = d_convolved.col_range(0, keys_);
        inputs.k = d_convolved.col_range(keys_, keys_);
        inputs.v = d_convolved.col_range(2 * keys_, values_);
        inputs.log_decay = d_projected.col_range(gates_first_, heads);
        inputs.beta = d_projected.col_range(gates_first_ + heads, heads);
        if (shape_.log_linear()) {
            inputs.lambda = d_projected.col_range(gates_first_ + 2 * heads, heads * shape_.levels);
        }
        return inputs;
    }

    void gates_backward(MatrixView<const float> projected, MatrixView<const float> convolved,
                        const MixerGradients& inputs, MatrixView<float> /*d_projected*/,
                        MatrixView<float> /*d_convolved*/, Gradients& gradients, Arena& arena,
                        int threads) const override {
        const std::int64_t heads = shape_.heads;
        l2_norm_backward(convolved.col_range(0, keys_), shape_.key_dim, kL2Epsilon, query_scale_, inputs.q, inputs.q,
                         threads);
        l2_norm_backward(convolved.col_range(keys_, keys_), shape_.key_dim, kL2Epsilon, 1.0F, inputs.k, inputs.k,
                         threads);
        float* workspace =
            arena.take(gates_backward_workspace_floats(heads * std::max(shape_.levels, kGateParameters)));
        delta_gates_backward({dt_bias_.data(), a_log_.data(), negative_eigenvalues_},
                             projected.col_range(gates_first_, heads), projected.col_range(gates_first_ + heads, heads),
                             inputs.log_decay, inputs.beta, inputs.log_decay, inputs.beta,
                             gradients.of(dt_bias_.data()), gradients.of(a_log_.data()), threads, workspace);
        if (!shape_.log_linear()) return;
        level_scales_backward(level_scale_.data(), projected.col_range(gates_first_ + 2 * heads, heads * shape_.levels),
                              inputs.lambda, inputs.lambda, gradients.of(level_scale_.data()), threads, workspace);
    }

    [[nodiscard]] MixerSteps steps() const override {
        GatedDeltaSteps steps;
        steps.gates = {dt_bias_.data(), a_log_.data(), negative_eigenvalues_};
        steps.level_scale = level_scale_.data();
        steps.norm = norm_.data();
        steps.norm_eps = norm_eps_;
        steps.l2_eps = kL2Epsilon;
        steps.query_scale = query_scale_;
        steps.use_gate = use_gate_;
        steps.keys = keys_;
        steps.values = values_;
        steps.gates_first = gates_first_;
        return steps;
    }

    void list_parameters(const ParameterList& list) override {
        const std::int64_t heads = shape_.heads;
        list.add_stacked(in_proj_, {{"q_proj", keys_},
                                    {"k_proj", keys_},
                                    {"v_proj", values_},
                                    {"g_proj", use_gate_ ? values_ : 0},
                                    {"a_proj", heads},
                                    {"b_proj", heads},
                                    {"l_proj", heads * shape_.levels}});
        list_convolutions(list);
        list.add("dt_bias", {heads}, dt_bias_.data(), false);
        list.add("A_log", {heads}, a_log_.data(), false);
        if (shape_.log_linear()) list.add("L", {heads, shape_.levels}, level_scale_.data(), false);
        list.add("o_norm.weight", {shape_.value_dim}, norm_.data(), false);
        list.add_linear("o_proj", out_proj_);
    }

private:
    static constexpr std::int64_t kGateParameters = 2;  // dt_bias and A_log, a value a head

    [[nodiscard]] GroupNorm output_norm() const {
        return {shape_.value_dim, norm_.data(), shape_.value_dim, norm_eps_};
    }

    void load_projections(const WeightReader& weights, std::int64_t hidden) {
        const std::int64_t heads = shape_.heads;
        use_gate_ = weights.config().get_bool("use_gate", true);
        const Linear q = weights.linear("q_proj", keys_, hidden);
        const Linear k = weights.linear("k_proj", keys_, hidden);
        const Linear v = weights.linear("v_proj", values_, hidden);
        const Linear g = use_gate_ ? weights.linear("g_proj", values_, hidden) : Linear{{}, {}, 0, hidden};
        const Linear a = weights.linear("a_proj", heads, hidden);
        const Linear b = weights.linear("b_proj", heads, hidden);
        const Linear l =
            shape_.log_linear() ? weights.linear("l_proj", heads * shape_.levels, hidden) : Linear{{}, {}, 0, hidden};
        in_proj_ = stack_rows({&q, &k, &v, &g, &a, &b, &l});
        gates_first_ = 2 * keys_ + values_ + g.outputs;
    }

    void load_convolutions(const WeightReader& weights) {
        const ConfigReader& config = weights.config();
        const bool with_convolution = config.get_bool("use_short_conv", true);
        const bool bias = config.get_bool("conv_bias", false);
        set_convolution(0, 2 * keys_ + values_, with_convolution ? read_conv_width(config, "conv_size") : 1,
                        with_convolution && bias);
        if (!with_convolution) return;
        load_convolution(weights, "q_conv1d", 0, keys_, bias);
        load_convolution(weights, "k_conv1d", keys_, keys_, bias);
        load_convolution(weights, "v_conv1d", 2 * keys_, values_, bias);
    }

    std::int64_t keys_ = 0;    // key_heads * d_k
    std::int64_t values_ = 0;  // heads * d_v
    bool use_gate_ = true;
    bool negative_eigenvalues_ = false;
    float norm_eps_ = 1e-6F;
    float query_scale_ = 1.0F;
    Buffer<float> level_scale_;  // L [heads, levels]
    Buffer<float> dt_bias_;      // [heads]
    Buffer<float> a_log_;        // [heads]
    Buffer<float> norm_;         // [d_v]
};

LayerParts gated_deltanet_layer(const WeightReader& layer, bool log_linear) {
    const ConfigReader& config = layer.config();
    const std::int64_t hidden = config.require_int("hidden_size");
    require_silu(config);
    LayerParts parts;
    parts.mixer_norm_name = "attn_norm.weight";
    parts.mixer_norm = layer.load(parts.mixer_norm_name, {hidden});
    parts.mixer_prefix = "attn.";
    parts.mixer = std::make_unique<GatedDeltaMixer>(layer.under(parts.mixer_prefix), log_linear);
    parts.mlp_norm = layer.load("mlp_norm.weight", {hidden});
    parts.mlp = std::make_unique<GatedMlp>(layer.under("mlp."), hidden, config.get_int("hidden_ratio", 4),
                                           config.get_int("intermediate_size", 0));
    return parts;
}

}  // namespace

Family gated_deltanet_family() {
    return {"gated_deltanet", "model.", "norm.weight", 1e-6,
            [](const WeightReader& layer) { return gated_deltanet_layer(layer, false); }};
}

Family h_gated_deltanet_family() {
    return {"h_gated_deltanet", "model.", "norm.weight", 1e-6,
            [](const WeightReader& layer) { return gated_deltanet_layer(layer, true); }};
}

}  // namespace fenwick
