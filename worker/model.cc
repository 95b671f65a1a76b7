#include "worker/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "core/errors.h"
#include "core/fenwick.h"
#include "core/hash.h"

namespace fenwick {
namespace {

std::string hash_of(const ConfigReader& config, const Checkpoint& checkpoint) {
    Hasher hasher;
    hasher.update(config.json().dump());
    hasher.update(checkpoint.hash());
    return hasher.hex();
}

std::string mixer_name(const MixerShape& shape) {
    const char* algebra = shape.algebra == TransitionAlgebra::kScalar     ? "scalar"
                          : shape.algebra == TransitionAlgebra::kDiagonal ? "diagonal"
                                                                          : "matrix";
    return std::string(shape.log_linear() ? "log-linear " : "linear ") + algebra;
}

LayerCost cost_of(const LayerParts& layer, std::int64_t hidden) {
    const TokenMixer& mixer = *layer.mixer;
    const MixerShape& shape = mixer.shape();
    const auto dk = static_cast<double>(shape.key_dim);
    const auto dv = static_cast<double>(shape.value_dim);
    const auto heads = static_cast<double>(shape.heads);
    LayerCost cost;
    cost.mixer = mixer_name(shape);
    cost.summary_bytes = summary_floats(shape) * static_cast<std::int64_t>(sizeof(float));
    cost.halo_bytes = mixer.halo_rows() * mixer.conv_channels() * static_cast<std::int64_t>(sizeof(float));
    // DESIGN section 8: the causal half of a chunk, the chunk's state, and one product for each state that is read. A
    // matrix transition also solves its triangle and carries each state (two products).
    const double products_a_state = shape.algebra == TransitionAlgebra::kMatrix ? 3.0 : 1.0;
    const double in_block_levels = shape.log_linear() ? 0.5 * (kBlockBits - kChunkBits) : 1.0;
    double mixing = kChunkTokens * (dk + dv) + 2.0 * dk * dv + products_a_state * 2.0 * dk * dv * in_block_levels;
    if (shape.algebra == TransitionAlgebra::kMatrix) mixing += kChunkTokens * (3.0 * dk + dv + kChunkTokens / 3.0);
    cost.flops_per_token = mixer.in_proj().flops() + mixer.out_proj().flops() + heads * mixing;
    if (shape.log_linear()) cost.flops_per_token_and_level = heads * products_a_state * 2.0 * dk * dv;
    std::int64_t floats = 2 * hidden + mixer.in_proj().outputs + mixer.conv_channels() + 2 * mixer.out_proj().inputs;
    if (layer.mlp != nullptr) cost.flops_per_token += layer.mlp->flops_per_token();
    cost.activation_bytes_per_token = floats * static_cast<std::int64_t>(sizeof(float));
    return cost;
}

}  // namespace

std::shared_ptr<const Model> Model::load(const std::filesystem::path& folder) {
    return load_for_training(folder);
}

std::shared_ptr<Model> Model::load_for_training(const std::filesystem::path& folder) {
    const ConfigReader config = ConfigReader::open(folder / "config.json");
    const Family& family = find_family(config.require_string("model_type"), config.source());
    require_absent(config, "attnres_block_size", "attention residuals");
    std::shared_ptr<Model> model(new Model());
    model->family_ = family.name;
    model->vocab_size_ = config.require_int("vocab_size");
    model->hidden_ = config.require_int("hidden_size");
    require_positive(config, "vocab_size", model->vocab_size_);
    require_positive(config, "hidden_size", model->hidden_);
    const std::int64_t layers = config.require_int("num_hidden_layers");
    require_positive(config, "num_hidden_layers", layers);
    model->norm_eps_ = static_cast<float>(config.get_double("norm_eps", family.default_eps));
    const std::int64_t bos = config.get_int("bos_token_id", -1);
    model->bos_id_ = bos >= 0 && bos < model->vocab_size_ ? static_cast<std::int32_t>(bos) : -1;

    Checkpoint checkpoint = Checkpoint::open(folder);
    model->hash_ = hash_of(config, checkpoint);
    model->parameter_count_ = checkpoint.parameters();
    const WeightReader root(checkpoint, config, "");
    const WeightReader body = root.under(family.prefix);
    model->embeddings_ = body.load("embeddings.weight", {model->vocab_size_, model->hidden_});
    for (std::int64_t i = 0; i < layers; ++i) {
        model->layers_.push_back(family.layer(body.under("layers." + std::to_string(i) + ".")));
    }
    model->final_norm_ = body.load(family.final_norm, {model->hidden_});
    if (config.get_bool("tie_word_embeddings", false)) {
        checkpoint.ignore("lm_head.weight");
    } else {
        model->lm_head_ = root.load("lm_head.weight", {model->vocab_size_, model->hidden_});
    }
    const std::vector<std::string> unused = checkpoint.unused();
    if (!unused.empty()) {
        spdlog::warn(
            "{}: {} tensor(s) are not part of a {} model and were not read: {}", folder.string(), unused.size(),
            family.name,
            fmt::join(unused.begin(),
                      unused.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(unused.size()), 20), ", "));
    }
    return model;
}

std::vector<Parameter> Model::parameters() {
    const Family& family = find_family(family_, "model");
    std::vector<Parameter> all;
    const ParameterList root(all);
    const ParameterList body = root.under(family.prefix);
    body.add("embeddings.weight", {vocab_size_, hidden_}, embeddings_.data(), false);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        LayerParts& parts = layers_[i];
        const ParameterList layer = body.under("layers." + std::to_string(i) + ".");
        layer.add(parts.mixer_norm_name, {hidden_}, parts.mixer_norm.data(), false);
        parts.mixer->list_parameters(layer.under(parts.mixer_prefix));
        if (parts.mlp == nullptr) continue;
        layer.add("mlp_norm.weight", {hidden_}, parts.mlp_norm.data(), false);
        parts.mlp->list_parameters(layer.under("mlp."));
    }
    body.add(family.final_norm, {hidden_}, final_norm_.data(), false);
    if (lm_head_.size() > 0) root.add("lm_head.weight", {vocab_size_, hidden_}, lm_head_.data(), true);
    return all;
}

std::int64_t Model::trained_tokens() const {
    std::int64_t tokens = 0;
    for (const LayerParts& layer : layers_) {
        const std::int64_t levels = layer.mixer->shape().levels;
        if (levels == 0) continue;
        const std::int64_t reach = std::int64_t{1} << std::min<std::int64_t>(levels - 1, 62);
        tokens = tokens == 0 ? reach : std::min(tokens, reach);
    }
    return tokens;
}

std::vector<LayerCost> Model::layer_costs() const {
    std::vector<LayerCost> costs;
    costs.reserve(layers_.size());
    for (const LayerParts& layer : layers_) costs.push_back(cost_of(layer, hidden_));
    return costs;
}

double Model::head_flops_per_token() const {
    return 2.0 * static_cast<double>(hidden_) * static_cast<double>(vocab_size_);
}

}  // namespace fenwick
