#include "tests/worker/reference_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/checkpoint.h"
#include "core/json.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/mixer.h"
#include "kernels/reference/rowwise.h"

namespace fenwick::reference {
namespace {

using Values = std::vector<double>;

struct Rows {
    Values values;
    std::int64_t cols = 0;
    [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(values.size()) / cols; }
    [[nodiscard]] MatrixView<const double> view() const { return {values.data(), rows(), cols}; }
    [[nodiscard]] Rows columns(std::int64_t first, std::int64_t count) const {
        Rows part{Values(static_cast<std::size_t>(rows() * count)), count};
        for (std::int64_t r = 0; r < rows(); ++r) {
            std::copy_n(values.data() + r * cols + first, count, part.values.data() + r * count);
        }
        return part;
    }
};

// x as bf16 holds it: eight bits of mantissa, to nearest, ties to even.
double bf16_of(double x) {
    if (x == 0.0 || !std::isfinite(x)) return x;
    int exponent = 0;
    const double mantissa = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

}  // namespace

class ReferenceModel::Layers {
public:
    Layers(const std::filesystem::path& folder, int threads, Rounding rounding)
        : config_(ConfigReader::open(folder / "config.json")), threads_(threads), rounding_(rounding) {
        Checkpoint file = Checkpoint::open(folder);
        for (const std::string& name : file.names()) {
            const std::vector<std::int64_t>& shape = file.info(name).shape;
            const Buffer<float> data = file.load_f32(name, shape);
            tensors_[name] = {Values(data.begin(), data.end()), data.size() / std::max<std::int64_t>(shape.at(0), 1)};
        }
    }

    Values& tensor(const std::string& name) { return tensors_.at(name).values; }

    // The rows that the head reads, as stored, and the head.
    Rows hidden_states(const std::vector<std::int32_t>& ids) {
        const std::string family = config_.require_string("model_type");
        const bool mamba2 = family == "mamba2" || family == "log_linear_mamba2";
        const bool log_linear = family == "log_linear_mamba2" || family == "h_gated_deltanet";
        const std::string body = mamba2 ? "backbone." : "model.";
        const double eps = config_.get_double("norm_eps", mamba2 ? 1e-5 : 1e-6);
        Rows x{embed_rows(weight(body + "embeddings.weight").view(), ids), hidden()};
        for (std::int64_t i = 0; i < config_.require_int("num_hidden_layers"); ++i) {
            const std::string layer = body + "layers." + std::to_string(i) + ".";
            const std::string norm = mamba2 ? (log_linear ? "mixer_norm" : "norm") : "attn_norm";
            const Rows normed = rms(x, layer + norm + ".weight", eps);
            add(x, mamba2 ? mamba2_mixer(layer + "mixer.", normed, log_linear, eps)
                          : delta_mixer(layer + "attn.", normed, log_linear, eps));
            if (has(layer + "mlp.gate_proj.weight")) {
                add(x, mlp(layer + "mlp.", rms(x, layer + "mlp_norm.weight", eps)));
            }
        }
        return stored(rms(x, body + (mamba2 ? "norm_f" : "norm") + ".weight", eps));
    }
    Rows head() {
        const bool mamba2 = config_.require_string("model_type").ends_with("mamba2");
        const bool tied = config_.get_bool("tie_word_embeddings", false);
        return stored(weight(!tied    ? "lm_head.weight"
                             : mamba2 ? "backbone.embeddings.weight"
                                      : "model.embeddings.weight"));
    }

private:
    [[nodiscard]] std::int64_t hidden() const { return config_.require_int("hidden_size"); }

    [[nodiscard]] bool has(const std::string& name) const { return tensors_.contains(name); }
    // A tensor as rows: its first dimension by the product of the others.
    [[nodiscard]] const Rows& weight(const std::string& name) const { return tensors_.at(name); }
    [[nodiscard]] const Values& vector(const std::string& name) const { return weight(name).values; }

    // What a model with bf16 operands stores as one.
    Values stored(Values values) const {
        if (rounding_ == Rounding::kBf16) std::transform(values.begin(), values.end(), values.begin(), bf16_of);
        return values;
    }
    Rows stored(Rows rows) const { return {stored(std::move(rows.values)), rows.cols}; }

    // Operands are stored ones, the sums are not.
    Rows product(const Rows& x, const std::string& name) {
        const Rows w = stored(weight(name + ".weight"));
        return {matmul(stored(x).view(), w.view(), bias(name)), w.rows()};
    }
    [[nodiscard]] Values bias(const std::string& name) const {
        return has(name + ".bias") ? vector(name + ".bias") : Values();
    }
    Rows rms(const Rows& x, const std::string& name, double eps) {
        return {group_rms_norm(x.view(), vector(name), x.cols, eps), x.cols};
    }
    static void add(Rows& x, const Rows& y) {
        for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] += y.values[i];
    }
    Rows convolution(const Rows& x, const std::string& name) {
        if (!has(name + ".weight")) {  // SiLU alone
            Rows y = x;
            for (double& value : y.values) value = silu(value);
            return stored(std::move(y));
        }
        const Rows& w = weight(name + ".weight");
        return stored(Rows{causal_convolution(w.view(), bias(name), {}, stored(x).view(), true), x.cols});
    }
    Rows mlp(const std::string& prefix, const Rows& x) {
        const Rows gate = stored(product(x, prefix + "gate_proj"));
        const Rows up = stored(product(x, prefix + "up_proj"));
        return product({swiglu(gate.view(), up.view()), gate.cols}, prefix + "down_proj");
    }
    static void level_scales(const Values& scale, const Rows& dl, Values& lambda) {
        lambda = dl.values;
        for (std::size_t i = 0; i < lambda.size(); ++i) lambda[i] = softplus(scale[i % scale.size()] * lambda[i]);
    }

    // The definition itself where its quadratic cost allows, else its recurrent form (tests/kernels/mixer_test.cc holds
    // the two together to 1e-13).
    Values mix(const MixerShape& shape, const MixerInputs& in) const {
        return in.tokens <= 1024 ? mixer_dense(shape, in, threads_) : mixer_recurrent(shape, in, threads_);
    }

    Rows mamba2_mixer(const std::string& prefix, const Rows& x, bool log_linear, double eps) {
        const Values& a_log = vector(prefix + "A_log");
        const Values& dt_bias = vector(prefix + "dt_bias");
        const Values& skip = vector(prefix + "D");
        const auto heads = static_cast<std::int64_t>(a_log.size());
        const std::int64_t groups = config_.get_int("n_groups", 1);
        const std::int64_t state = config_.get_int("state_size", 128);
        const std::int64_t head_dim = config_.get_int("head_dim", 64);
        const std::int64_t inner = heads * head_dim;
        const Rows all = product(x, prefix + "in_proj");
        const Rows z = stored(all.columns(0, inner));
        const Rows conv = convolution(all.columns(inner, inner + 2 * groups * state), prefix + "conv1d");
        const Rows dt_raw = all.columns(2 * inner + 2 * groups * state, heads);
        MixerInputs in;
        in.tokens = x.rows();
        in.k = conv.columns(inner, groups * state).values;
        in.q = conv.columns(inner + groups * state, groups * state).values;
        in.v = conv.columns(0, inner).values;
        const Values raw_x = in.v;
        in.log_decay.resize(dt_raw.values.size());
        const std::vector<double> limit = config_.get_doubles("dt_limit");
        for (std::size_t i = 0; i < dt_raw.values.size(); ++i) {
            const std::size_t h = i % static_cast<std::size_t>(heads);
            const double dt = time_step(dt_raw.values[i], dt_bias[h], limit.empty() ? 0 : limit[0],
                                        limit.empty() ? INFINITY : limit[1]);
            in.log_decay[i] = log_decay(a_log[h], dt);
            for (std::int64_t c = 0; c < head_dim; ++c) {
                in.v[i * static_cast<std::size_t>(head_dim) + static_cast<std::size_t>(c)] *= dt;
            }
        }
        in.v = stored(in.v);
        MixerShape shape{TransitionAlgebra::kScalar, heads, groups, state, head_dim, 0};
        if (log_linear) {
            const Rows& scale = weight(prefix + "L");
            shape.levels = scale.cols;
            level_scales(scale.values, all.columns(2 * inner + 2 * groups * state + heads, heads * shape.levels),
                         in.lambda);
        }
        Rows y = stored(Rows{mix(shape, in), inner});
        for (std::size_t i = 0; i < y.values.size(); ++i) {
            const std::size_t channel = i % static_cast<std::size_t>(inner);
            const bool for_channels = static_cast<std::int64_t>(skip.size()) == inner;
            y.values[i] += raw_x[i] * skip[for_channels ? channel : channel / static_cast<std::size_t>(head_dim)];
        }
        if (!has(prefix + "norm.weight")) return product({swiglu(z.view(), y.view()), inner}, prefix + "out_proj");
        return product({gated_rms_norm(y.view(), z.view(), vector(prefix + "norm.weight"), inner / groups, eps,
                                       config_.get_bool("norm_before_gate", false)),
                        inner},
                       prefix + "out_proj");
    }

    Rows delta_mixer(const std::string& prefix, const Rows& x, bool log_linear, double eps) {
        const Values& a_log = vector(prefix + "A_log");
        const Values& dt_bias = vector(prefix + "dt_bias");
        const auto heads = static_cast<std::int64_t>(a_log.size());
        const std::int64_t key_heads = config_.get_int("num_heads", 6);
        const std::int64_t key_dim = config_.get_int("head_dim", 256);
        const Rows q = convolution(product(x, prefix + "q_proj"), prefix + "q_conv1d");
        const Rows k = convolution(product(x, prefix + "k_proj"), prefix + "k_conv1d");
        const Rows v = convolution(product(x, prefix + "v_proj"), prefix + "v_conv1d");
        const Rows a = product(x, prefix + "a_proj");
        const Rows b = product(x, prefix + "b_proj");
        MixerShape shape{TransitionAlgebra::kMatrix, heads, key_heads, key_dim, v.cols / heads, 0};
        MixerInputs in;
        in.tokens = x.rows();
        in.q =
            stored(l2_norm(q.view(), key_dim, 1e-6, log_linear ? 1.0 : 1.0 / std::sqrt(static_cast<double>(key_dim))));
        in.k = stored(l2_norm(k.view(), key_dim, 1e-6, 1.0));
        in.v = v.values;
        for (std::size_t i = 0; i < a.values.size(); ++i) {
            const std::size_t h = i % static_cast<std::size_t>(heads);
            in.log_decay.push_back(log_decay(a_log[h], softplus(a.values[i] + dt_bias[h])));
            in.beta.push_back((config_.get_bool("allow_neg_eigval", false) ? 2.0 : 1.0) * sigmoid(b.values[i]));
        }
        if (log_linear) {
            const Rows& scale = weight(prefix + "L");
            shape.levels = scale.cols;
            level_scales(scale.values, product(x, prefix + "l_proj"), in.lambda);
        }
        const Rows o = stored(Rows{mix(shape, in), v.cols});
        if (!has(prefix + "g_proj.weight")) {
            return product({group_rms_norm(o.view(), vector(prefix + "o_norm.weight"), shape.value_dim, eps), v.cols},
                           prefix + "o_proj");
        }
        const Rows g = stored(product(x, prefix + "g_proj"));
        return product(
            {gated_rms_norm(o.view(), g.view(), vector(prefix + "o_norm.weight"), shape.value_dim, eps, true), v.cols},
            prefix + "o_proj");
    }

    ConfigReader config_;
    std::map<std::string, Rows> tensors_;
    int threads_;
    Rounding rounding_;
};

ReferenceModel::ReferenceModel(const std::filesystem::path& folder, int threads, Rounding rounding)
    : layers_(std::make_unique<Layers>(folder, threads, rounding)) {}
ReferenceModel::~ReferenceModel() = default;

std::vector<double>& ReferenceModel::tensor(const std::string& name) {
    return layers_->tensor(name);
}

std::vector<double> ReferenceModel::nll(const std::vector<std::int32_t>& ids) {
    Rows h = layers_->hidden_states(ids);
    h.values.resize(h.values.size() - static_cast<std::size_t>(h.cols));
    return cross_entropy(h.view(), layers_->head().view(), ids.data() + 1);
}

double ReferenceModel::objective(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets,
                                 double z_loss) {
    const Rows h = layers_->hidden_states(ids);
    const Rows head = layers_->head();
    const Rows logits{matmul(h.view(), head.view(), {}), head.rows()};
    double sum = 0.0;
    for (std::size_t t = 0; t < targets.size(); ++t) {
        if (targets[t] < 0) continue;
        const double* row = logits.values.data() + t * static_cast<std::size_t>(logits.cols);
        const double largest = *std::max_element(row, row + logits.cols);
        double exps = 0.0;
        for (std::int64_t c = 0; c < logits.cols; ++c) exps += std::exp(row[c] - largest);
        const double log_sum = largest + std::log(exps);
        sum += log_sum - row[targets[t]] + z_loss * log_sum * log_sum;
    }
    return sum;
}

std::vector<double> model_nll(const std::filesystem::path& folder, const std::vector<std::int32_t>& ids, int threads,
                              Rounding rounding) {
    return ReferenceModel(folder, threads, rounding).nll(ids);
}

}  // namespace fenwick::reference
