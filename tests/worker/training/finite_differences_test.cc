// The gradients of every family against central differences of the reference model in double.
//
// For a tensor with gradient g and a direction v of random signs, (L(p + h v) - L(p - h v)) / 2h is <g, v> up to
// O(h^2) and what double rounds off over 2h. All entries of the tensor take part. An error e of g shows as <e, v>, a
// sum of random signs about as large as |e|: so it is held against |g|.
#include <catch2/catch.hpp>

#include "tests/worker/reference_model.h"
#include "tests/worker/training/gradient_tools.h"

namespace fenwick {
namespace {

using testing::Document;
using testing::kFamilies;
using testing::ModelTensors;

constexpr double kStep = 1e-5;
constexpr float kScale = 0.25F;

// |<g, v> - difference| <= kBound |g| + kFloor. fp32 rounds u = 2^-24 off at every step; from the embeddings through
// two layers to the loss and back there are some 400 steps one after the other, most of them sums: 400 u = 2.4e-5, and
// twice that for terms that cancel. Double rounds 1e-16 L / kStep = 1e-9 off the difference (L < 100), and h^2 with a
// third derivative below 100 is 1e-8.
constexpr double kBound = 5e-5;
constexpr double kFloor = 1e-7;

// A head's first output is (q k) v beta: the norm behind it makes that little more than the sign of q k, a step where
// q k is near 0 and eps small, whose slope fp32 cannot know. With this eps slopes are at most 10.
constexpr double kNormEps = 0.01;

std::filesystem::path make_smooth(const testing::TemporaryModels& models, const std::string& family,
                                  const std::string& name = "-smooth", const testing::ModelEdit& edit = nullptr) {
    return testing::make_tiny(models, family, name, [&](ModelTensors& tensors, nlohmann::json& config) {
        config["norm_eps"] = kNormEps;
        if (edit) edit(tensors, config);
    });
}

double objective(reference::ReferenceModel& model, const std::vector<Document>& documents, double z_loss) {
    double sum = 0.0;
    for (const Document& document : documents) {
        if (!document.ids.empty()) sum += model.objective(document.ids, document.targets, z_loss);
    }
    return kScale * sum;
}

// Random signs, the same for the same tensor; `only` >= 0: one entry alone.
std::vector<double> direction(std::int64_t size, std::uint64_t seed, std::int64_t only = -1) {
    std::mt19937_64 random(seed);
    std::vector<double> signs(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < signs.size(); ++i) {
        const double sign = (random() & 1U) != 0 ? 1.0 : -1.0;
        signs[i] = only < 0 || only == static_cast<std::int64_t>(i) ? sign : 0.0;
    }
    return signs;
}

// A tensor and the direction in which it is moved.
struct Move {
    std::string name;
    std::vector<double> along;
};

double central_difference(reference::ReferenceModel& model, const std::vector<Move>& moves,
                          const std::vector<Document>& documents, double z_loss) {
    const auto shifted = [&](double step) {
        std::vector<std::vector<double>> kept;
        for (const Move& move : moves) {
            std::vector<double>& values = model.tensor(move.name);
            REQUIRE(values.size() == move.along.size());
            kept.push_back(values);
            for (std::size_t i = 0; i < values.size(); ++i) values[i] += step * move.along[i];
        }
        const double result = objective(model, documents, z_loss);
        for (std::size_t m = 0; m < moves.size(); ++m) model.tensor(moves[m].name) = kept[m];
        return result;
    };
    return (shifted(kStep) - shifted(-kStep)) / (2.0 * kStep);
}

double product(const float* gradient, const std::vector<double>& along) {
    double sum = 0.0;
    for (std::size_t i = 0; i < along.size(); ++i) sum += static_cast<double>(gradient[i]) * along[i];
    return sum;
}

double norm(const float* gradient, std::int64_t size) {
    double square = 0.0;
    for (std::int64_t i = 0; i < size; ++i) square += static_cast<double>(gradient[i]) * gradient[i];
    return std::sqrt(square);
}

void check_tensor(reference::ReferenceModel& reference, const Parameter& parameter, const float* gradient,
                  const std::vector<double>& signs, const std::vector<Document>& documents, double z_loss) {
    const double difference = central_difference(reference, {{parameter.name, signs}}, documents, z_loss);
    const double along = product(gradient, signs);
    const double bound = kBound * norm(gradient, parameter.size) + kFloor;
    INFO(parameter.name << ": gradient " << along << ", difference " << difference << ", off by "
                        << std::fabs(along - difference) / bound << " of the bound");
    CHECK(std::fabs(along - difference) <= bound);
}

// Every tensor along random signs; with `entries` also one entry of each.
void check_model(const std::filesystem::path& folder, const std::vector<Document>& documents, bool entries) {
    const double z_loss = 0.01;
    const std::shared_ptr<Model> model = Model::load_for_training(folder);
    testing::RunOptions options;
    options.scale = kScale;
    options.backprop.z_loss = static_cast<float>(z_loss);
    const testing::BatchResult got = testing::run_batch(model, documents, options);
    reference::ReferenceModel reference(folder, 1);
    INFO(folder);
    const float* gradient = got.gradients.data();
    std::uint64_t seed = 1;
    for (const Parameter& parameter : model->parameters()) {
        check_tensor(reference, parameter, gradient, direction(parameter.size, ++seed), documents, z_loss);
        if (entries) {
            const auto at = static_cast<std::int64_t>(seed * 7919) % parameter.size;
            check_tensor(reference, parameter, gradient, direction(parameter.size, seed, at), documents, z_loss);
        }
        gradient += parameter.size;
    }
}

// Two documents, of which the first has rows that are not scored.
std::vector<Document> short_documents() {
    std::vector<Document> documents = {testing::random_document(90, 1), testing::random_document(13, 2)};
    for (std::size_t t = 20; t < 40; ++t) documents[0].targets[t] = kNoTarget;
    return documents;
}

TEST_CASE("gradients of every family agree with central differences in double") {
    testing::TemporaryModels models;
    for (const char* family : kFamilies) check_model(make_smooth(models, family), short_documents(), true);
}

TEST_CASE("gradients of the families' options agree with central differences in double") {
    testing::TemporaryModels models;
    const auto check_with = [&](const std::string& family, const std::string& name, const testing::ModelEdit& edit) {
        check_model(make_smooth(models, family, name, edit), short_documents(), false);
    };
    const auto biased = [](ModelTensors& tensors, const std::string& layer) {
        for (auto& [name, tensor] : ModelTensors(tensors)) {
            if (!name.ends_with(layer + ".weight")) continue;
            std::vector<float> bias(static_cast<std::size_t>(tensor.shape[0]));
            for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = 0.1F * static_cast<float>(i % 7) - 0.3F;
            tensors[name.substr(0, name.rfind('.')) + ".bias"] = {{tensor.shape[0]}, bias};
        }
    };
    check_with("log_linear_mamba2", "-biases", [&](ModelTensors& tensors, nlohmann::json& config) {
        biased(tensors, "in_proj");
        biased(tensors, "out_proj");
        config["use_bias"] = true;
    });
    check_with("mamba2", "-tied", [&](ModelTensors& tensors, nlohmann::json& config) {
        tensors.erase("lm_head.weight");
        config["tie_word_embeddings"] = true;
    });
    check_with("mamba2", "-norm", [&](ModelTensors&, nlohmann::json& config) { config["norm_before_gate"] = true; });
    check_with("mamba2", "-plain", [&](ModelTensors& tensors, nlohmann::json& config) {
        std::erase_if(tensors, [](const auto& tensor) { return tensor.first.ends_with("mixer.norm.weight"); });
        config["rmsnorm"] = false;
    });
    check_with("mamba2", "-channels", [&](ModelTensors& tensors, nlohmann::json& config) {
        for (auto& [name, tensor] : tensors) {
            if (!name.ends_with("mixer.D")) continue;
            tensor = {{16}, {}};
            for (int i = 0; i < 16; ++i) tensor.values.push_back(0.1F * static_cast<float>(i) - 0.5F);
        }
        config["D_has_hdim"] = true;
    });
    check_with("log_linear_mamba2", "-limits", [&](ModelTensors&, nlohmann::json& config) {
        config["dt_limit"] = {0.01, 0.05};
    });
    check_with("gated_deltanet", "-biases", [&](ModelTensors& tensors, nlohmann::json& config) {
        biased(tensors, "conv1d");
        config["conv_bias"] = true;
    });
    check_with("h_gated_deltanet", "-least", [&](ModelTensors& tensors, nlohmann::json& config) {
        std::erase_if(tensors, [](const auto& tensor) {
            return tensor.first.find("_conv1d.") != std::string::npos ||
                   tensor.first.find("g_proj") != std::string::npos;
        });
        config["use_gate"] = false;
        config["use_short_conv"] = false;
    });
    check_with("gated_deltanet", "-negative",
               [&](ModelTensors&, nlohmann::json& config) { config["allow_neg_eigval"] = true; });
}

// Two blocks and a bit: states and halos go from rank to rank. All tensors of the first layer's mixer at once, each
// along signs over the norm of its gradient, so that each counts alike.
TEST_CASE("gradients through the tree over ranks agree with central differences in double") {
    testing::TemporaryModels models;
    const std::vector<Document> documents = {testing::random_document(2 * kBlockTokens + 2, 3)};
    for (const char* family : kFamilies) {
        const std::filesystem::path folder = make_smooth(models, family);
        const std::shared_ptr<Model> model = Model::load_for_training(folder);
        testing::RunOptions options;
        options.ranks = 3;
        options.scale = kScale;
        const testing::BatchResult got = testing::run_batch(model, documents, options);
        reference::ReferenceModel reference(folder, 1);
        const float* gradient = got.gradients.data();
        std::vector<Move> moves;
        double along = 0.0;
        for (const Parameter& parameter : model->parameters()) {
            const std::string prefix = model->family().ends_with("mamba2") ? "layers.0.mixer." : "layers.0.attn.";
            if (parameter.name.find(prefix) != std::string::npos) {
                const double length = norm(gradient, parameter.size);
                Move move{parameter.name, direction(parameter.size, 3)};
                for (double& sign : move.along) sign /= length;
                along += product(gradient, move.along);
                moves.push_back(std::move(move));
            }
            gradient += parameter.size;
        }
        const double bound = kBound * std::sqrt(static_cast<double>(moves.size()));
        const double difference = central_difference(reference, moves, documents, 0.0);
        INFO(family << ": gradient " << along << ", difference " << difference << ", bound " << bound);
        CHECK(std::fabs(along - difference) <= bound);
    }
}

}  // namespace
}  // namespace fenwick
