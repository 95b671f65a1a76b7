// Whole models: against the double reference, linear against log-linear, any ranks and passes, saved states, bad files.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>

#include "core/checkpoint.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "core/files.h"
#include "core/json.h"
#include "core/safetensors_writer.h"
#include "tests/worker/reference_model.h"
#include "tests/worker/small_models.h"

namespace fenwick {
namespace {

using testing::kFamilies;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double worst_difference(const std::vector<float>& got, const std::vector<double>& want) {
    double worst = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
        if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
    }
    return worst;
}

// A tensor's new name; may shorten its shape to the first rows.
using Rename = std::function<std::string(std::string name, std::vector<std::int64_t>& shape)>;

// Writes `folder`'s model again into `to` as `family`. change(name, values) edits a tensor and says whether it stays.
template <class Change>
void rewrite_model(
    const std::filesystem::path& folder, const std::filesystem::path& to, const std::string& family,
    const Change& change, const Rename& rename = [](const std::string& name, auto&) { return name; }) {
    std::filesystem::create_directories(to);
    Checkpoint from = Checkpoint::open(folder);
    SafetensorsWriter writer;
    std::vector<Buffer<float>> kept;
    for (const std::string& name : from.names()) {
        std::vector<std::int64_t> shape = from.info(name).shape;
        Buffer<float> values = from.load_f32(name, shape);
        if (!change(name, values)) continue;
        kept.push_back(std::move(values));
        const std::string new_name = rename(name, shape);
        const auto elements = static_cast<std::size_t>(array_elements(shape).value());
        writer.add(new_name, shape, {kept.back().data(), elements});
    }
    writer.write(to / "model.safetensors");
    nlohmann::json config = ConfigReader::open(folder / "config.json").json();
    config["model_type"] = family;
    write_file_atomically(to / "config.json", config.dump());
}

}  // namespace

// The lengths of every boundary; one reference evaluation at the longest serves the shorter ones. The bound is the
// project's promise for fp32 losses.
TEST_CASE("every family agrees with the double reference") {
    testing::TemporaryModels models;
    const std::vector<std::int32_t> ids = testing::random_ids(8192, 256, 1);
    for (const char* family : kFamilies) {
        const std::filesystem::path folder = models.make(family);
        const std::vector<double> want = reference::model_nll(folder, ids, 2);
        const std::shared_ptr<const Model> model = Model::load(folder);
        for (const std::size_t tokens : {1U, 2U, 63U, 64U, 65U, 300U, 4095U, 4096U, 4097U, 8192U}) {
            INFO(family << ", tokens " << tokens);
            const std::vector<std::int32_t> some(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(tokens));
            const std::vector<float> got = testing::score_on(model, some, 1, 0);
            REQUIRE(got.size() == tokens - 1);
            CHECK(worst_difference(got, want) <= 1e-4);
        }
    }
}

TEST_CASE("every family agrees with the double reference at 20000 tokens") {
    testing::TemporaryModels models;
    const std::vector<std::int32_t> ids = testing::random_ids(20000, 256, 2);
    for (const char* family : kFamilies) {
        INFO(family);
        const std::filesystem::path folder = models.make(family);
        const std::vector<float> got = testing::score_on(Model::load(folder), ids, 2, 4096);
        CHECK(worst_difference(got, reference::model_nll(folder, ids, 2)) <= 1e-4);
    }
}

// With dl = 0, lambda = softplus(0) = ln 2 at every level, and the norm after each mixer takes a common factor out
// again (with an eps of 1e-20 and D = 0; the linear family's 1/sqrt(d_k) on q goes the same way). So the log-linear
// model must score as the linear one does, up to the fp32 promise. (lambda = 1 itself is tested on the mixers.)
TEST_CASE("a constant lambda makes each log-linear family its linear one") {
    testing::TemporaryModels models;
    const std::vector<std::int32_t> ids = testing::random_ids(9000, 256, 3);
    const auto differs_from_linear = [&](const std::filesystem::path& folder, const std::filesystem::path& linear) {
        for (const std::filesystem::path& config : {folder / "config.json", linear / "config.json"}) {
            nlohmann::json json = ConfigReader::open(config).json();
            json["norm_eps"] = 1e-20;
            write_file_atomically(config, json.dump());
        }
        const std::vector<float> want = testing::score_on(Model::load(linear), ids, 1, 0);
        return worst_difference(testing::score_on(Model::load(folder), ids, 1, 0), {want.begin(), want.end()});
    };

    const std::filesystem::path delta = models.make("h_gated_deltanet");
    rewrite_model(delta, models.root() / "flat-delta", "h_gated_deltanet",
                  [](const std::string& name, Buffer<float>& values) {
                      if (name.ends_with("l_proj.weight")) std::fill(values.begin(), values.end(), 0.0F);
                      return true;
                  });
    rewrite_model(delta, models.root() / "linear-delta", "gated_deltanet", [](const std::string& name, Buffer<float>&) {
        return !name.ends_with("l_proj.weight") && !name.ends_with("attn.L");
    });
    CHECK(differs_from_linear(models.root() / "flat-delta", models.root() / "linear-delta") <= 1e-4);
    CHECK(differs_from_linear(delta, models.root() / "linear-delta") > 2e-2);

    // Mamba-2's linear family has no MLP: the log-linear one's is made to add nothing.
    const std::filesystem::path mamba = models.make("log_linear_mamba2");
    constexpr std::int64_t kInner = 64;
    constexpr std::int64_t kLinearOutputs = 2 * kInner + 2 * 16 + 4;
    const auto no_skip = [](const std::string& name, Buffer<float>& values) {
        if (name.ends_with("mixer.D") || name.ends_with("down_proj.weight")) {
            std::fill(values.begin(), values.end(), 0.0F);
        }
    };
    rewrite_model(mamba, models.root() / "levels-mamba", "log_linear_mamba2",
                  [&](const std::string& name, Buffer<float>& values) {
                      no_skip(name, values);
                      return true;
                  });
    rewrite_model(mamba, models.root() / "flat-mamba", "log_linear_mamba2",
                  [&](const std::string& name, Buffer<float>& values) {
                      no_skip(name, values);
                      if (name.ends_with("in_proj.weight")) {
                          std::fill(values.begin() + kLinearOutputs * std::int64_t{64}, values.end(), 0.0F);
                      }
                      return true;
                  });
    rewrite_model(
        mamba, models.root() / "linear-mamba", "mamba2",
        [&](const std::string& name, Buffer<float>& values) {
            no_skip(name, values);
            return name.find(".mlp") == std::string::npos && !name.ends_with("mixer.L");
        },
        [&](std::string name, std::vector<std::int64_t>& shape) {
            if (name.ends_with("in_proj.weight")) shape[0] = kLinearOutputs;
            const std::size_t at = name.find("mixer_norm");
            return at == std::string::npos ? name : name.replace(at, 10, "norm");
        });
    CHECK(differs_from_linear(models.root() / "flat-mamba", models.root() / "linear-mamba") <= 1e-4);
    CHECK(differs_from_linear(models.root() / "levels-mamba", models.root() / "linear-mamba") > 2e-2);
}

TEST_CASE("losses have the same bits on any ranks and for any passes") {
    testing::TemporaryModels models;
    for (const char* family : kFamilies) {
        const std::shared_ptr<const Model> model = Model::load(models.make(family));
        for (const std::int64_t tokens : {1, 5, 300, 4097, 40001}) {
            const std::vector<std::int32_t> ids = testing::random_ids(tokens, 256, 4);
            const std::vector<float> want = testing::score_on(model, ids, 1, 0);
            for (const int ranks : {1, 2, 3, 5, 8, 16}) {
                for (const std::int64_t pass : {std::int64_t{0}, kBlockTokens, 3 * kBlockTokens}) {
                    INFO(family << ", tokens " << tokens << ", ranks " << ranks << ", pass " << pass);
                    CHECK(same_bits(testing::score_on(model, ids, ranks, pass), want));
                }
            }
        }
    }
}

// CASES B3 and A2 for plumbing: whatever the body computes, an all-zero head gives ln 256, and a NaN anywhere shows.
TEST_CASE("an all-zero head gives ln 256 at every position of every family") {
    testing::TemporaryModels models;
    for (const char* family : kFamilies) {
        const auto zero_head = [](const std::string& name, Buffer<float>& values) {
            if (name == "lm_head.weight") std::fill(values.begin(), values.end(), 0.0F);
            return true;
        };
        const std::filesystem::path folder = models.root() / (std::string(family) + "-zero");
        rewrite_model(models.make(family), folder, family, zero_head);
        const std::shared_ptr<const Model> model = Model::load(folder);
        for (const std::int64_t tokens : {1, 2, 3, 7, 16, 65, 4100}) {
            const std::vector<float> nll = testing::score_on(model, testing::random_ids(tokens, 256, 5), 4, 0);
            REQUIRE(static_cast<std::int64_t>(nll.size()) == tokens - 1);
            for (const float x : nll) REQUIRE(x == Approx(5.545177444479562).margin(1e-6));
        }
    }
}

// CASES A2 and C5: constant decay -20 a token, A_log = -inf (no decay at all) and A_log = -100.
TEST_CASE("strong decay and A_log of minus infinity score finite and right") {
    testing::TemporaryModels models;
    const std::vector<std::int32_t> ids = testing::random_ids(300, 256, 6);
    for (const char* family : kFamilies) {
        const std::filesystem::path folder = models.make(family);
        const auto score_with = [&](const std::string& name, float a_log, float dt_bias) {
            const std::filesystem::path to = models.root() / (std::string(family) + name);
            rewrite_model(folder, to, family, [&](const std::string& tensor, Buffer<float>& values) {
                if (tensor.ends_with("A_log")) values[0] = a_log;
                if (tensor.ends_with("dt_bias")) values[0] = dt_bias;
                return true;
            });
            std::vector<float> nll = testing::score_on(Model::load(to), ids, 1, 0);
            INFO(family << name);
            CHECK(worst_difference(nll, reference::model_nll(to, ids, 1)) <= 1e-4);
            return nll;
        };
        (void)score_with("-strong", std::log(16.0F), 20.0F);
        const std::vector<float> none = score_with("-none", -INFINITY, 0.5F);
        const std::vector<float> tiny = score_with("-tiny", -100.0F, 0.5F);
        CHECK(same_bits(none, tiny));
    }
}

TEST_CASE("a saved state continues with the same bits on any number of ranks") {
    testing::TemporaryModels models;
    for (const char* family : kFamilies) {
        const std::shared_ptr<const Model> model = Model::load(models.make(family));
        const std::vector<std::int32_t> ids = testing::random_ids(30000, 256, 7);
        const std::vector<float> want = testing::score_on(model, ids, 1, 0);
        const std::filesystem::path file = models.root() / "state.safetensors";
        for (const std::int64_t split : {kBlockTokens, 3 * kBlockTokens, 6 * kBlockTokens}) {
            std::vector<float> got;
            testing::with_gang(model, 3, [&](Gang& gang) {
                got = testing::score(gang, ids, kBlockTokens, split);
                gang.save_state(file);
            });
            testing::with_gang(model, 2, [&](Gang& gang) {
                gang.restore_state(file);
                REQUIRE(gang.position() == split);
                const std::vector<float> rest = testing::score(gang, ids, 2 * kBlockTokens);
                got.insert(got.end(), rest.begin(), rest.end());
            });
            INFO(family << ", split " << split);
            CHECK(same_bits(got, want));
        }
    }
}

TEST_CASE("a damaged or foreign saved state is refused") {
    testing::TemporaryModels models;
    const std::shared_ptr<const Model> model = Model::load(models.make("log_linear_mamba2"));
    const std::vector<std::int32_t> ids = testing::random_ids(2 * kBlockTokens, 256, 8);
    const std::filesystem::path file = models.root() / "state.safetensors";
    SelfCommunicator self;
    Gang gang(model, self, 1);
    gang.begin_document();
    (void)testing::score(gang, ids, kBlockTokens, kBlockTokens);
    gang.save_state(file);

    Gang other(Model::load(models.make("mamba2")), self, 1);
    CHECK_THROWS_WITH(other.restore_state(file), Catch::Contains("saved with model"));

    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(file));
    std::fstream raw(file, std::ios::in | std::ios::out | std::ios::binary);
    raw.seekg(size - 9);
    const int byte = raw.get();
    raw.seekp(size - 9);
    raw.put(static_cast<char>(byte ^ 4));
    raw.close();
    CHECK_THROWS_WITH(gang.restore_state(file), Catch::Contains("damaged"));
    std::filesystem::resize_file(file, static_cast<std::uintmax_t>(size - 1));
    CHECK_THROWS_AS(gang.restore_state(file), DataError);
}

// CASES C2 (vi, vii), C6 (i, ii) and unknown names.
TEST_CASE("models that do not fit their configuration are refused by name") {
    testing::TemporaryModels models;
    const std::filesystem::path good = models.make("mamba2");
    const auto with_config = [&](const std::string& name, const std::string& field, const nlohmann::json& value) {
        std::filesystem::path to = models.root() / name;
        rewrite_model(good, to, "mamba2", [](const std::string&, Buffer<float>&) { return true; });
        nlohmann::json config = ConfigReader::open(to / "config.json").json();
        config[field] = value;
        write_file_atomically(to / "config.json", config.dump());
        return to;
    };
    CHECK_THROWS_WITH(Model::load(with_config("family", "model_type", "mamba3")),
                      Catch::Contains("mamba3") && Catch::Contains("log_linear_mamba2"));
    CHECK_THROWS_WITH(Model::load(with_config("hidden", "hidden_size", 256)), Catch::Contains("embeddings.weight") &&
                                                                                  Catch::Contains("[256, 256]") &&
                                                                                  Catch::Contains("[256, 64]"));
    CHECK_THROWS_AS(Model::load(with_config("act", "hidden_act", "relu")), ConfigError);
    CHECK_THROWS_AS(Model::load(with_config("limit", "dt_limit", {1.0, 0.5})), ConfigError);
    CHECK_THROWS_AS(Model::load(with_config("residuals", "attnres_block_size", 2)), ConfigError);
    CHECK_THROWS_AS(Model::load(with_config("groups", "n_groups", 3)), ConfigError);
    // The inner width is heads * head_dim: a wrong expand does no harm.
    CHECK(Model::load(with_config("expand", "expand", 7))->hash() != Model::load(good)->hash());

    const std::filesystem::path cut = models.root() / "cut";
    rewrite_model(good, cut, "mamba2",
                  [](const std::string& name, Buffer<float>&) { return name != "backbone.layers.1.mixer.D"; });
    CHECK_THROWS_WITH(Model::load(cut), Catch::Contains("backbone.layers.1.mixer.D"));
    CHECK_THROWS_AS(Model::load(models.root() / "absent"), DataError);

    const std::filesystem::path hybrid = models.make("gated_deltanet");
    nlohmann::json config = ConfigReader::open(hybrid / "config.json").json();
    config["attn"] = {{"layers", {1}}};
    write_file_atomically(hybrid / "config.json", config.dump());
    CHECK_THROWS_WITH(Model::load(hybrid), Catch::Contains("attn"));
}

TEST_CASE("one thread rank that fails ends the others by name") {
    ThreadWorld world(3);
    testing::TemporaryModels models;
    const std::shared_ptr<const Model> model = Model::load(models.make("mamba2"));
    std::vector<std::thread> followers;
    followers.emplace_back([&] { CHECK_THROWS_AS(serve_gang(model, *world.communicator(1), 1), UnavailableError); });
    followers.emplace_back([&] { world.communicator(2)->abort("out of luck", ExitCode::kUnavailable); });
    const std::unique_ptr<Communicator> comm = world.communicator(0);
    Gang gang(model, *comm, 1);
    CHECK_THROWS_WITH(
        [&] {
            gang.begin_document();
            (void)testing::score(gang, testing::random_ids(9000, 256, 9), 0);
        }(),
        Catch::Contains("rank 2") && Catch::Contains("out of luck"));
    for (std::thread& follower : followers) follower.join();
}

}  // namespace fenwick
