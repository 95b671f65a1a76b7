// A log-linear model whose lambda is the same at every level and token is the linear model, and so are its gradients:
// the sums over levels go another way, and nothing else differs.
#include <catch2/catch.hpp>

#include "tests/worker/training/gradient_tools.h"

namespace fenwick {
namespace {

using testing::Document;
using testing::ModelTensors;

constexpr std::int64_t kInner = 16;  // make_tiny's heads * head_dim
constexpr std::int64_t kLinearOutputs = 2 * kInner + std::int64_t{2} * 12 + 2;
constexpr std::int64_t kHidden = 24;

// Both are sums of the same terms in another order, over up to 2^13 tokens in tiles; as for ranks.
constexpr double kSame = 2e-5;

// Gradients of `linear`'s parameters are those of the same parameters in `log_linear`; of its first rows where that has
// more.
void check_same(const std::shared_ptr<Model>& linear, const std::shared_ptr<Model>& log_linear,
                const std::function<std::string(std::string)>& name_there) {
    const std::vector<Document> documents = {testing::random_document(2 * kBlockTokens + 70, 91),
                                             testing::random_document(50, 92)};
    testing::RunOptions options;
    options.ranks = 2;
    const testing::BatchResult want = testing::run_batch(linear, documents, options);
    const testing::BatchResult all = testing::run_batch(log_linear, documents, options);
    CHECK(all.nll_sum == Approx(want.nll_sum).epsilon(1e-6));
    std::map<std::string, const float*> there;
    const float* at = all.gradients.data();
    for (const Parameter& parameter : log_linear->parameters()) {
        there[parameter.name] = at;
        at += parameter.size;
    }
    std::vector<float> got;
    for (const Parameter& parameter : linear->parameters()) {
        const auto found = there.find(name_there(parameter.name));
        INFO(parameter.name);
        REQUIRE(found != there.end());
        got.insert(got.end(), found->second, found->second + parameter.size);
    }
    std::string worst;
    const double error = testing::relative_error(linear->parameters(), got, want.gradients, worst);
    INFO(worst << " differs by " << error);
    CHECK(error <= kSame);
}

// lambda = softplus(L dl) = 1 with L = 1 and dl = ln(e - 1), a bias of in_proj.
TEST_CASE("with lambda = 1 log-linear Mamba-2 has the gradients of Mamba-2") {
    testing::TemporaryModels models;
    const auto shared = [](ModelTensors& tensors, nlohmann::json& config) {
        for (auto& [name, tensor] : tensors) {
            // The linear family has no MLP: the other's adds nothing.
            if (name.ends_with("down_proj.weight")) std::fill(tensor.values.begin(), tensor.values.end(), 0.0F);
        }
        config["use_bias"] = true;
    };
    const std::filesystem::path flat =
        testing::make_tiny(models, "log_linear_mamba2", "-flat", [&](ModelTensors& tensors, nlohmann::json& config) {
            shared(tensors, config);
            for (auto& [name, tensor] : ModelTensors(tensors)) {
                if (name.ends_with("mixer.L")) {
                    std::fill(tensors[name].values.begin(), tensors[name].values.end(), 1.0F);
                } else if (name.ends_with("in_proj.weight")) {
                    std::vector<float>& weight = tensors[name].values;
                    std::fill(weight.begin() + kLinearOutputs * kHidden, weight.end(), 0.0F);
                    std::vector<float> bias(static_cast<std::size_t>(tensor.shape[0]), 0.05F);
                    std::fill(bias.begin() + kLinearOutputs, bias.end(), std::log(std::exp(1.0F) - 1.0F));
                    tensors[name.substr(0, name.rfind('.')) + ".bias"] = {{tensor.shape[0]}, bias};
                } else if (name.ends_with("out_proj.weight")) {
                    tensors[name.substr(0, name.rfind('.')) + ".bias"] = {{kHidden},
                                                                          std::vector<float>(kHidden, -0.1F)};
                }
            }
        });
    const auto name_there = [](std::string name) {
        const std::size_t at = name.find(".norm.weight");
        const bool of_layer = at != std::string::npos && name.find("mixer.norm") == std::string::npos;
        return of_layer ? name.replace(at, 1, ".mixer_") : name;
    };
    const std::filesystem::path linear = models.root() / "linear-mamba2";
    testing::edit_model(flat, linear, [&](ModelTensors& tensors, nlohmann::json& config) {
        ModelTensors kept;
        for (auto& [name, tensor] : tensors) {
            if (name.find("mlp") != std::string::npos || name.ends_with("mixer.L")) continue;
            std::string linear_name = name;
            if (const std::size_t at = name.find("mixer_norm"); at != std::string::npos) {
                linear_name.replace(at, 10, "norm");
            }
            if (name.find("in_proj") != std::string::npos) {
                const auto columns = static_cast<std::int64_t>(tensor.values.size()) / tensor.shape[0];
                tensor.shape[0] = kLinearOutputs;
                tensor.values.resize(static_cast<std::size_t>(kLinearOutputs * columns));
            }
            kept[linear_name] = tensor;
        }
        tensors = kept;
        config["model_type"] = "mamba2";
    });
    check_same(Model::load_for_training(linear), Model::load_for_training(flat), name_there);
}

// dl = 0 makes every lambda softplus(0) = ln 2. The norm behind the mixer takes that factor out again, and the linear
// form's 1 / sqrt(d_k), when its eps is next to nothing: the same function of the same parameters.
TEST_CASE("with one lambda for all levels log-linear Gated DeltaNet has the gradients of Gated DeltaNet") {
    testing::TemporaryModels models;
    const std::filesystem::path flat =
        testing::make_tiny(models, "h_gated_deltanet", "-flat", [&](ModelTensors& tensors, nlohmann::json& config) {
            for (auto& [name, tensor] : tensors) {
                if (name.ends_with("l_proj.weight")) std::fill(tensor.values.begin(), tensor.values.end(), 0.0F);
            }
            config["norm_eps"] = 1e-20;
        });
    const std::filesystem::path linear = models.root() / "linear-delta";
    testing::edit_model(flat, linear, [&](ModelTensors& tensors, nlohmann::json& config) {
        std::erase_if(tensors, [](const auto& tensor) {
            return tensor.first.ends_with("l_proj.weight") || tensor.first.ends_with("attn.L");
        });
        config["model_type"] = "gated_deltanet";
    });
    check_same(Model::load_for_training(linear), Model::load_for_training(flat), [](std::string name) { return name; });
}

}  // namespace
}  // namespace fenwick
