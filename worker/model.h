// A model in memory: configuration, weights in fp32, and its layers. Read-only once loaded, and shared by thread ranks,
// unless it was loaded for training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "worker/families/families.h"

namespace fenwick {

/// What one layer costs, for plans: all figures are for the whole layer (all heads).
struct LayerCost {
    std::string mixer;                     ///< "log-linear scalar", "linear matrix", ...
    std::int64_t summary_bytes = 0;        ///< one (A, S), as the exchange sends it
    std::int64_t halo_bytes = 0;           ///< convolution rows before a shard
    double flops_per_token = 0;            ///< useful ones (DESIGN section 8), without the levels of entering states
    double flops_per_token_and_level = 0;  ///< for each entering state; 0 for linear read-outs
    std::int64_t activation_bytes_per_token = 0;
};

class Model {
public:
    /// Reads `folder` (config.json, safetensors with an optional index). Throws ConfigError for an unknown family
    /// (model_type) or an option that is not supported, DataError for tensors that are missing, damaged or of another
    /// shape than the configuration says. Tensors that nothing reads are listed in a warning.
    [[nodiscard]] static std::shared_ptr<const Model> load(const std::filesystem::path& folder);
    /// The same, to be changed through `parameters`. `hash` stays that of what was loaded.
    [[nodiscard]] static std::shared_ptr<Model> load_for_training(const std::filesystem::path& folder);

    /// Every tensor that was loaded, in the order of computation, embeddings first; lm_head last, unless it is tied.
    [[nodiscard]] std::vector<Parameter> parameters();

    [[nodiscard]] const std::string& family() const { return family_; }  ///< model_type: "log_linear_mamba2", ...
    [[nodiscard]] std::int64_t vocab_size() const { return vocab_size_; }
    [[nodiscard]] std::int64_t hidden_size() const { return hidden_; }
    [[nodiscard]] std::int64_t parameter_count() const { return parameter_count_; }
    [[nodiscard]] std::int32_t bos_id() const { return bos_id_; }    ///< -1: config.json has none
    [[nodiscard]] const std::string& hash() const { return hash_; }  ///< of configuration and weights
    [[nodiscard]] float norm_eps() const { return norm_eps_; }
    /// Longest document whose levels were all trained (2^(levels - 1) tokens); 0: no limit (linear models).
    [[nodiscard]] std::int64_t trained_tokens() const;

    [[nodiscard]] std::vector<LayerCost> layer_costs() const;
    /// Embedding to logits: what does not belong to a layer.
    [[nodiscard]] double head_flops_per_token() const;

    [[nodiscard]] const std::vector<LayerParts>& layers() const { return layers_; }
    [[nodiscard]] MatrixView<const float> embeddings() const { return embeddings_.matrix(vocab_size_, hidden_); }
    [[nodiscard]] const float* final_norm() const { return final_norm_.data(); }
    [[nodiscard]] MatrixView<const float> lm_head() const {
        return lm_head_.size() == 0 ? embeddings() : lm_head_.matrix(vocab_size_, hidden_);
    }

private:
    Model() = default;

    std::string family_;
    std::string hash_;
    std::int64_t vocab_size_ = 0;
    std::int64_t hidden_ = 0;
    std::int64_t parameter_count_ = 0;
    std::int32_t bos_id_ = -1;
    float norm_eps_ = 0.0F;
    std::vector<LayerParts> layers_;
    Buffer<float> embeddings_;  // [vocab, hidden]
    Buffer<float> final_norm_;  // [hidden]
    Buffer<float> lm_head_;     // [vocab, hidden]; empty when tied to the embeddings
};

}  // namespace fenwick
