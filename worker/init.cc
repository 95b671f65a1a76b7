#include "worker/init.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/files.h"
#include "core/safetensors_writer.h"
#include "worker/families/families.h"

namespace fenwick {
namespace {

constexpr std::int64_t kConvWidth = 4;

class RandomModel {
public:
    explicit RandomModel(const RandomModelOptions& options) : o_(options), random_(options.seed) {}

    void normal(const std::string& name, std::vector<std::int64_t> shape) {
        normal(name, std::move(shape), o_.initializer_range);
    }
    void normal(const std::string& name, std::vector<std::int64_t> shape, double deviation) {
        std::normal_distribution<double> draw(0.0, deviation);
        add(name, std::move(shape), [&](std::int64_t) { return draw(random_); });
    }
    // As normal; rows from `first_level` on are a projection to lambda, whose deviation stays small: a log-linear model
    // starts near its linear form, and the levels part where that helps.
    void with_levels(const std::string& name, std::vector<std::int64_t> shape, std::int64_t first_level) {
        constexpr double kMost = 0.02;
        const double share = std::min(1.0, kMost / o_.initializer_range);
        const std::int64_t columns = shape.at(1);
        std::normal_distribution<double> draw(0.0, o_.initializer_range);
        add(name, std::move(shape),
            [&](std::int64_t i) { return draw(random_) * (i / columns >= first_level ? share : 1.0); });
    }
    void uniform(const std::string& name, std::vector<std::int64_t> shape, double bound) {
        std::uniform_real_distribution<double> draw(-bound, bound);
        add(name, std::move(shape), [&](std::int64_t) { return draw(random_); });
    }
    void constant(const std::string& name, std::vector<std::int64_t> shape, double value) {
        add(name, std::move(shape), [&](std::int64_t) { return value; });
    }
    // A_log = ln a, a uniform; dt_bias = the inverse softplus of dt, log-uniform.
    void decay(const std::string& prefix, std::int64_t heads) {
        std::uniform_real_distribution<double> a(o_.a_range.first, o_.a_range.second);
        std::uniform_real_distribution<double> log_dt(std::log(o_.dt_range.first), std::log(o_.dt_range.second));
        add(prefix + "A_log", {heads}, [&](std::int64_t) { return std::log(a(random_)); });
        add(prefix + "dt_bias", {heads}, [&](std::int64_t) {
            const double dt = std::exp(log_dt(random_));
            return dt + std::log(-std::expm1(-dt));
        });
    }
    void convolution(const std::string& name, std::int64_t channels) {
        uniform(name + ".weight", {channels, 1, kConvWidth}, 1.0 / std::sqrt(kConvWidth));
    }
    void mlp(const std::string& prefix) {
        const std::int64_t inner = GatedMlp::intermediate_size(o_.hidden_size, 4);
        normal(prefix + "gate_proj.weight", {inner, o_.hidden_size});
        normal(prefix + "up_proj.weight", {inner, o_.hidden_size});
        normal(prefix + "down_proj.weight", {o_.hidden_size, inner}, out_deviation());
    }
    // Outputs onto the residual stream start smaller the more of them there are.
    [[nodiscard]] double out_deviation() const {
        return o_.initializer_range / std::sqrt(2.0 * static_cast<double>(o_.layers));
    }

    void write(nlohmann::json config) {
        config["vocab_size"] = o_.vocab_size;
        config["hidden_size"] = o_.hidden_size;
        config["num_hidden_layers"] = o_.layers;
        config["model_type"] = o_.family;
        config["initializer_range"] = o_.initializer_range;
        config["hidden_act"] = "swish";
        config["tie_word_embeddings"] = false;
        config["bos_token_id"] = nullptr;
        writer_.write(o_.output / "model.safetensors");
        write_file_atomically(o_.output / "config.json", config.dump(2) + "\n");
    }

private:
    void add(const std::string& name, std::vector<std::int64_t> shape,
             const std::function<double(std::int64_t)>& value) {
        std::int64_t size = 1;
        for (const std::int64_t extent : shape) size *= extent;
        Buffer<float>& data = tensors_.emplace_back(size);
        for (std::int64_t i = 0; i < size; ++i) data[i] = static_cast<float>(value(i));
        writer_.add(name, std::move(shape), {data.data(), static_cast<std::size_t>(size)});
    }

    const RandomModelOptions& o_;
    std::mt19937_64 random_;
    std::deque<Buffer<float>> tensors_;
    SafetensorsWriter writer_;
};

nlohmann::json mamba2_weights(const RandomModelOptions& o, RandomModel& model, bool log_linear) {
    const std::int64_t inner = o.heads * o.head_dim;
    const std::int64_t conv = inner + 2 * o.state_size;
    const std::int64_t levels = log_linear ? o.levels : 0;
    model.normal("backbone.embeddings.weight", {o.vocab_size, o.hidden_size});
    for (std::int64_t i = 0; i < o.layers; ++i) {
        const std::string layer = "backbone.layers." + std::to_string(i) + ".";
        const std::string mixer = layer + "mixer.";
        model.constant(layer + (log_linear ? "mixer_norm.weight" : "norm.weight"), {o.hidden_size}, 1.0);
        const std::int64_t rows = inner + conv + o.heads;
        model.with_levels(mixer + "in_proj.weight", {rows + o.heads * levels, o.hidden_size}, rows);
        model.convolution(mixer + "conv1d", conv);
        model.constant(mixer + "conv1d.bias", {conv}, 0.0);
        model.decay(mixer, o.heads);
        model.constant(mixer + "D", {o.heads}, 1.0);
        model.constant(mixer + "norm.weight", {inner}, 1.0);
        model.normal(mixer + "out_proj.weight", {o.hidden_size, inner}, model.out_deviation());
        if (!log_linear) continue;
        model.constant(mixer + "L", {o.heads, levels}, o.level_scale);
        model.constant(layer + "mlp_norm.weight", {o.hidden_size}, 1.0);
        model.mlp(layer + "mlp.");
    }
    model.constant("backbone.norm_f.weight", {o.hidden_size}, 1.0);
    model.normal("lm_head.weight", {o.vocab_size, o.hidden_size});
    return {{"architectures", {log_linear ? "LogLinearMamba2ForCausalLM" : "Mamba2ForCausalLM"}},
            {"state_size", o.state_size},
            {"num_heads", o.heads},
            {"head_dim", o.head_dim},
            {"expand", static_cast<double>(inner) / static_cast<double>(o.hidden_size)},
            {"n_groups", 1},
            {"conv_kernel", kConvWidth},
            {"use_bias", false},
            {"use_conv_bias", true},
            {"rmsnorm", true},
            {"norm_before_gate", false},
            {"D_has_hdim", false},
            {"norm_eps", 1e-5}};
}

nlohmann::json gated_deltanet_weights(const RandomModelOptions& o, RandomModel& model, bool log_linear) {
    constexpr std::int64_t kExpandV = 2;
    const std::int64_t keys = o.heads * o.head_dim;
    const std::int64_t values = kExpandV * keys;
    model.normal("model.embeddings.weight", {o.vocab_size, o.hidden_size});
    for (std::int64_t i = 0; i < o.layers; ++i) {
        const std::string layer = "model.layers." + std::to_string(i) + ".";
        const std::string attn = layer + "attn.";
        model.constant(layer + "attn_norm.weight", {o.hidden_size}, 1.0);
        model.normal(attn + "q_proj.weight", {keys, o.hidden_size});
        model.normal(attn + "k_proj.weight", {keys, o.hidden_size});
        model.normal(attn + "v_proj.weight", {values, o.hidden_size});
        model.normal(attn + "g_proj.weight", {values, o.hidden_size});
        model.normal(attn + "a_proj.weight", {o.heads, o.hidden_size});
        model.normal(attn + "b_proj.weight", {o.heads, o.hidden_size});
        model.convolution(attn + "q_conv1d", keys);
        model.convolution(attn + "k_conv1d", keys);
        model.convolution(attn + "v_conv1d", values);
        model.decay(attn, o.heads);
        model.constant(attn + "o_norm.weight", {kExpandV * o.head_dim}, 1.0);
        model.normal(attn + "o_proj.weight", {o.hidden_size, values}, model.out_deviation());
        if (log_linear) {
            model.with_levels(attn + "l_proj.weight", {o.heads * o.levels, o.hidden_size}, 0);
            model.constant(attn + "L", {o.heads, o.levels}, o.level_scale);
        }
        model.constant(layer + "mlp_norm.weight", {o.hidden_size}, 1.0);
        model.mlp(layer + "mlp.");
    }
    model.constant("model.norm.weight", {o.hidden_size}, 1.0);
    model.normal("lm_head.weight", {o.vocab_size, o.hidden_size});
    return {{"architectures", {log_linear ? "HGatedDeltaNetForCausalLM" : "GatedDeltaNetForCausalLM"}},
            {"num_heads", o.heads},
            {"head_dim", o.head_dim},
            {"expand_v", static_cast<double>(kExpandV)},
            {"conv_size", kConvWidth},
            {"use_gate", true},
            {"use_short_conv", true},
            {"hidden_ratio", 4},
            {"norm_eps", 1e-6}};
}

void check_range(const char* name, std::pair<double, double> range) {
    if (range.first > 0 && range.first <= range.second && std::isfinite(range.second)) return;
    throw UsageError(std::string(name) + ": expected two numbers, 0 < low <= high");
}

void check(const RandomModelOptions& o) {
    const std::pair<const char*, std::int64_t> sizes[] = {
        {"hidden", o.hidden_size}, {"layers", o.layers},    {"heads", o.heads},  {"head-dim", o.head_dim},
        {"state", o.state_size},   {"vocab", o.vocab_size}, {"levels", o.levels}};
    for (const auto& [name, value] : sizes) {
        if (value < 1 || value > (std::int64_t{1} << 24)) {
            throw UsageError("--" + std::string(name) + ": expected a number from 1 to 2^24, found " +
                             std::to_string(value));
        }
    }
    check_range("--dt-range", o.dt_range);
    check_range("--a-range", o.a_range);
    if (!(o.initializer_range > 0) || !std::isfinite(o.initializer_range)) {
        throw UsageError("--deviation: expected a number above 0");
    }
    if (!(o.level_scale >= 0) || !std::isfinite(o.level_scale)) {
        throw UsageError("--level-scale: expected a number, 0 or above");
    }
}

}  // namespace

void write_random_model(const RandomModelOptions& options) {
    const Family& family = find_family(options.family, "--family");
    check(options);
    std::error_code error;
    std::filesystem::create_directories(options.output, error);
    if (error) throw UnavailableError(options.output.string() + ": cannot create the folder: " + error.message());
    for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
        if (std::filesystem::exists(options.output / name)) {
            throw UsageError(options.output.string() + " already holds " + name + "; choose another folder");
        }
    }
    RandomModel model(options);
    const bool log_linear = family.name == "log_linear_mamba2" || family.name == "h_gated_deltanet";
    const bool mamba2 = family.name == "log_linear_mamba2" || family.name == "mamba2";
    model.write(mamba2 ? mamba2_weights(options, model, log_linear)
                       : gated_deltanet_weights(options, model, log_linear));
}

}  // namespace fenwick
