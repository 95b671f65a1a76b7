// The model families. A family is one file: how a layer's tensors are named, its gates, its read-out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/gated_mlp.h"
#include "worker/token_mixer.h"

namespace fenwick {

/// What a layer is made of. x += mixer(norm(x)); then, where there is one, x += mlp(norm(x)).
struct LayerParts {
    std::string mixer_norm_name;  ///< of its tensor in the checkpoint
    Buffer<float> mixer_norm;     ///< [hidden]
    std::string mixer_prefix;     ///< of the mixer's tensors: "mixer." or "attn."
    std::unique_ptr<TokenMixer> mixer;
    Buffer<float> mlp_norm;  ///< [hidden], empty without an MLP
    std::unique_ptr<GatedMlp> mlp;
};

struct Family {
    std::string name;        ///< config.json's model_type
    std::string prefix;      ///< of all tensors but lm_head
    std::string final_norm;  ///< under the prefix
    double default_eps = 0;  ///< norm_eps where config.json has none
    std::function<LayerParts(const WeightReader&)> layer;
};

[[nodiscard]] Family mamba2_family();
[[nodiscard]] Family log_linear_mamba2_family();
[[nodiscard]] Family gated_deltanet_family();
[[nodiscard]] Family h_gated_deltanet_family();

/// All families, in the order of the documentation.
[[nodiscard]] const std::vector<Family>& all_families();
/// Throws ConfigError naming `source`, the unknown name and the known ones.
[[nodiscard]] const Family& find_family(const std::string& name, const std::string& source);

// Checks shared by the families; all throw ConfigError naming file and field.
void require_positive(const ConfigReader& config, const std::string& field, std::int64_t value);
/// hidden_act must be silu (or its other name, swish).
void require_silu(const ConfigReader& config);
/// `field` must be absent, null or empty: it asks for `what`, which this build does not run.
void require_absent(const ConfigReader& config, const std::string& field, const std::string& what);
[[nodiscard]] std::int64_t read_conv_width(const ConfigReader& config, const std::string& field);

}  // namespace fenwick
