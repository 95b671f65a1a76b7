// What training sees of a model: the checkpoint's tensors, no more and no less, and the memory that the model computes
// with.
#include "worker/training/parameters.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "core/checkpoint.h"
#include "core/errors.h"
#include "core/json.h"
#include "tests/worker/training/edited_models.h"
#include "worker/training/gradients.h"

namespace fenwick {
namespace {

using testing::kFamilies;

// The model as it is made, with every bias and option that adds tensors, and with as few tensors as there can be.
std::vector<std::filesystem::path> variants(const testing::TemporaryModels& models, const std::string& family) {
    const std::filesystem::path made = models.make(family);
    std::vector<std::filesystem::path> folders = {made};
    const bool mamba = family.ends_with("mamba2");
    const auto edited = [&](const std::string& suffix, const testing::ModelEdit& edit) {
        folders.push_back(models.root() / (family + suffix));
        testing::edit_model(made, folders.back(), edit);
    };
    edited("-tied", [](testing::ModelTensors& tensors, nlohmann::json& config) {
        tensors.erase("lm_head.weight");
        config["tie_word_embeddings"] = true;
    });
    edited("-least", [&](testing::ModelTensors& tensors, nlohmann::json& config) {
        std::erase_if(tensors, [&](const auto& tensor) {
            const std::string& name = tensor.first;
            if (mamba) return name.ends_with("conv1d.bias") || name.ends_with("mixer.norm.weight");
            return name.find("_conv1d.") != std::string::npos || name.find("g_proj") != std::string::npos;
        });
        for (const char* option : {"use_conv_bias", "rmsnorm", "use_short_conv", "use_gate"}) config[option] = false;
    });
    edited("-most", [&](testing::ModelTensors& tensors, nlohmann::json& config) {
        testing::ModelTensors more;
        for (const auto& [name, tensor] : tensors) {
            const std::string stem = name.substr(0, name.rfind('.'));
            if (name.ends_with("conv1d.weight") || name.ends_with("mixer.in_proj.weight") ||
                name.ends_with("mixer.out_proj.weight")) {
                more[stem + ".bias"] = {{tensor.shape[0]}, std::vector<float>(tensor.shape[0], 0.25F)};
            }
            if (name.ends_with("mixer.D")) more[name] = {{64}, std::vector<float>(64, 0.5F)};
        }
        for (auto& [name, tensor] : more) tensors[name] = tensor;
        for (const char* option : {"use_bias", "conv_bias", "D_has_hdim"}) config[option] = true;
    });
    return folders;
}

TEST_CASE("the parameters of every family are the tensors of its checkpoint, byte for byte") {
    testing::TemporaryModels models;
    for (const char* family : kFamilies) {
        for (const std::filesystem::path& folder : variants(models, family)) {
            INFO(folder);
            const std::shared_ptr<Model> model = Model::load_for_training(folder);
            Checkpoint checkpoint = Checkpoint::open(folder);
            std::set<std::string> listed;
            for (const Parameter& parameter : model->parameters()) {
                INFO(parameter.name);
                REQUIRE(listed.insert(parameter.name).second);
                REQUIRE(checkpoint.has(parameter.name));
                const Buffer<float> stored = checkpoint.load_f32(parameter.name, parameter.shape);
                REQUIRE(stored.size() == parameter.size);
                CHECK(std::memcmp(stored.data(), parameter.values,
                                  static_cast<std::size_t>(parameter.size) * sizeof(float)) == 0);
            }
            const std::vector<std::string> names = checkpoint.names();
            CHECK(listed == std::set<std::string>(names.begin(), names.end()));
            CHECK(parameter_floats(model->parameters()) == model->parameter_count());
        }
    }
}

TEST_CASE("weight decay takes matrices alone") {
    testing::TemporaryModels models;
    for (const char* family : kFamilies) {
        for (const Parameter& parameter : Model::load_for_training(models.make(family))->parameters()) {
            const bool matrix = parameter.name.find("proj.weight") != std::string::npos ||
                                parameter.name.find("conv1d.weight") != std::string::npos ||
                                parameter.name == "lm_head.weight";
            INFO(parameter.name);
            CHECK(parameter.decayed == matrix);
        }
    }
}

TEST_CASE("changing any parameter through its pointer changes the losses") {
    testing::TemporaryModels models;
    const std::vector<std::int32_t> ids = testing::random_ids(130, 256, 11);
    for (const char* family : kFamilies) {
        for (const std::filesystem::path& folder : variants(models, family)) {
            const std::shared_ptr<Model> model = Model::load_for_training(folder);
            const std::vector<float> before = testing::score_on(model, ids, 1, 0);
            for (const Parameter& parameter : model->parameters()) {
                INFO(folder << ", " << parameter.name);
                const std::vector<float> kept(parameter.values, parameter.values + parameter.size);
                for (std::int64_t i = 0; i < parameter.size; ++i) parameter.values[i] *= 1.5F + 0.25F * (i % 3);
                // A bias of zero is changed by adding.
                if (kept[0] == 0.0F) std::fill_n(parameter.values, parameter.size, 0.5F);
                CHECK(testing::score_on(model, ids, 1, 0) != before);
                std::copy(kept.begin(), kept.end(), parameter.values);
            }
            CHECK(testing::score_on(model, ids, 1, 0) == before);
        }
    }
}

TEST_CASE("gradients lie in the order of the parameters, and of stacked ones in a row") {
    testing::TemporaryModels models;
    for (const char* family : kFamilies) {
        const std::shared_ptr<Model> model = Model::load_for_training(models.make(family));
        const std::vector<Parameter> parameters = model->parameters();
        Gradients gradients(parameters);
        std::int64_t offset = 0;
        for (const Parameter& parameter : parameters) {
            CHECK(gradients.of(parameter.values) == gradients.all().data() + offset);
            CHECK(gradients.of(parameter.values + parameter.size - 1) ==
                  gradients.all().data() + offset + parameter.size - 1);
            offset += parameter.size;
        }
        CHECK(static_cast<std::int64_t>(gradients.all().size()) == offset);
        for (const LayerParts& layer : model->layers()) {
            const MatrixView<const float> in = layer.mixer->in_proj().matrix();
            CHECK(gradients.of(in).row(in.rows - 1) == gradients.of(in.row(in.rows - 1)));
            const Convolution conv = layer.mixer->convolution();
            CHECK(gradients.of(conv.weight + conv.channels * conv.width - 1) ==
                  gradients.of(conv.weight) + conv.channels * conv.width - 1);
        }
        const float elsewhere = 0.0F;
        CHECK_THROWS_AS(gradients.of(&elsewhere), InternalError);
    }
}

}  // namespace
}  // namespace fenwick
