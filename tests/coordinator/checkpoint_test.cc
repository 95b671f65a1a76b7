// `fenwick checkpoint`: a model as a training checkpoint, and out of it again.
#include "core/checkpoint.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "parallel/collectives.h"
#include "parallel/thread_world.h"
#include "tests/coordinator/support.h"
#include "worker/training/training_checkpoint.h"

using namespace fenwick;
using namespace fenwick::testing;
namespace fs = std::filesystem;

namespace {

/// The weights in `model` as step `step` of a run on `ranks` ranks.
fs::path save_model(const fs::path& model, const fs::path& folder, std::int64_t step, int ranks) {
    CheckpointHead head;
    head.step = step;
    head.model_config = read_file(model / "config.json");
    head.state = {{"tokens", 4096 * step}, {"loss", 2.25}};
    Checkpoint weights = Checkpoint::open(model);
    std::vector<float> values;
    for (const std::string& name : weights.names()) {
        const std::vector<std::int64_t> shape = weights.info(name).shape;
        head.table.push_back({name, shape, std::ssize(values)});
        const Buffer<float> tensor = weights.load_f32(name, shape);
        values.insert(values.end(), tensor.begin(), tensor.end());
    }
    const std::vector<float> zeros(values.size(), 0.0F);
    run_thread_ranks(ranks, [&](Communicator& world) {
        const Slice slice = slice_of(std::ssize(values), world.size(), world.rank());
        const auto part = [&](const std::vector<float>& all) {
            return std::span(all).subspan(static_cast<std::size_t>(slice.first), static_cast<std::size_t>(slice.size));
        };
        (void)write_training_checkpoint(world, folder, head, {part(values), part(zeros), part(zeros)}, 0);
    });
    return folder / step_name(step);
}

nlohmann::json json_of(const Arguments& arguments) {
    const Finished run = run_program(arguments);
    INFO(run.err);
    REQUIRE(run.code == 0);
    return nlohmann::json::parse(run.out);
}

}  // namespace

TEST_CASE("checkpoints export as the models that they hold") {
    const TemporaryFolder folder;
    for (const char* family : {"log_linear_mamba2", "mamba2", "h_gated_deltanet", "gated_deltanet"}) {
        INFO(family);
        const fs::path model = small_model(folder, family);
        const fs::path run = folder / "run" / family;
        (void)save_model(model, run, 7, 3);
        const fs::path out = folder / "out" / family;
        const auto report =
            json_of({"checkpoint", "export", "--json", run.string(), "--output", (out / "fp32").string()});
        CHECK(report.at("step") == 7);
        CHECK(report.at("family") == family);
        // The same tensors, shapes and bits, and the same configuration: the same hash as the model's own.
        Checkpoint before = Checkpoint::open(model);
        Checkpoint after = Checkpoint::open(out / "fp32");
        CHECK(after.hash() == before.hash());
        CHECK(read_file(out / "fp32" / "config.json") == read_file(model / "config.json"));
        CHECK(read_file(out / "fp32" / "model.safetensors").find("\"format\":\"pt\"") != std::string::npos);

        CHECK(
            run_program({"checkpoint", "export", run.string(), "--dtype", "bf16", "--output", (out / "bf16").string()})
                .code == 0);
        Checkpoint rounded = Checkpoint::open(out / "bf16");
        CHECK(rounded.names() == before.names());
        int matrices = 0;
        for (const std::string& name : before.names()) {
            INFO(name);
            const std::vector<std::int64_t> shape = before.info(name).shape;
            const bool exact = shape.size() == 1 || name.ends_with(".L");
            CHECK((rounded.info(name).dtype == Dtype::kF32) == exact);
            matrices += exact ? 0 : 1;
            const Buffer<float> a = before.load_f32(name, shape);
            const Buffer<float> b = rounded.load_f32(name, shape);
            // Eight bits of significand: half a unit is 2^-9 of the next power of two below, 2^-8 relative at most.
            for (std::int64_t i = 0; i < a.size(); ++i) {
                if (!(std::abs(a[i] - b[i]) <= (exact ? 0.0F : std::abs(a[i]) * 0x1p-8F))) FAIL_CHECK(i);
            }
        }
        CHECK(matrices >= 5);
        const Finished again = run_program({"checkpoint", "export", run.string(), "--output", (out / "fp32").string()});
        CHECK(again.code == 2);
        CHECK(again.err.find("already holds config.json") != std::string::npos);
    }
}

TEST_CASE("checkpoints are shown, checked and resharded") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    const fs::path run = folder / "run";
    (void)save_model(model, run, 10, 2);
    const fs::path newest = save_model(model, run, 20, 2);
    const auto shown = json_of({"checkpoint", "inspect", "--json", run.string()});
    CHECK(shown.at("checkpoint") == newest.string());
    CHECK(shown.at("step") == 20);
    CHECK(shown.at("ranks") == 2);
    CHECK(shown.at("state").at("tokens") == 81920);
    CHECK(shown.at("table").at(0).at("name") == Checkpoint::open(model).names().front());
    CHECK(shown.at("parameters") == Checkpoint::open(model).parameters());
    const Finished lines = run_program({"checkpoint", "inspect", (run / "step-00000010/").string()});
    CHECK(lines.code == 0);
    CHECK(lines.out.find("step        10\n") != std::string::npos);
    CHECK(lines.out.find("loss        2.25\n") != std::string::npos);
    CHECK(lines.out.find("lm_head.weight [256,") != std::string::npos);

    CHECK(json_of({"checkpoint", "verify", "--json", run.string()}).at("status") == "completed");
    const auto moved = json_of(
        {"checkpoint", "reshard", "--json", run.string(), "--ranks", "5", "--output", (folder / "five").string()});
    CHECK(moved.at("ranks") == 5);
    CHECK(moved.at("checkpoint") == (folder / "five" / "step-00000020").string());
    CHECK(run_program({"checkpoint", "verify", (folder / "five").string()}).code == 0);
    CHECK(TrainingCheckpoint::open(folder / "five" / "step-00000020").world() == 5);

    std::string shard = read_file(newest / "shard-00001-of-00002.safetensors");
    shard.back() = static_cast<char>(shard.back() ^ 1);
    write_file(newest / "shard-00001-of-00002.safetensors", shard);
    for (const Arguments& arguments :
         {Arguments{"checkpoint", "verify", run.string()},
          Arguments{"checkpoint", "export", run.string(), "--output", (folder / "bad").string()},
          Arguments{"checkpoint", "reshard", run.string(), "--ranks", "2", "--output", (folder / "bad2").string()}}) {
        const Finished refused = run_program(arguments);
        INFO(refused.err);
        CHECK(refused.code == 65);
        CHECK(refused.err.find("shard-00001-of-00002.safetensors: expected the hash") != std::string::npos);
        CHECK(refused.err.find("step-00000010 before it is whole") != std::string::npos);
    }
    CHECK_FALSE(fs::exists(folder / "bad" / "model.safetensors"));
    CHECK(list_checkpoints(folder / "bad2").empty());
    CHECK(run_program({"checkpoint", "verify", (folder / "absent").string()}).code == 65);
    CHECK(run_program({"checkpoint", "reshard", run.string(), "--ranks", "0", "--output", "x"}).code == 2);
    CHECK(run_program({"checkpoint"}).code == 2);
    for (const char* verb : {"verify", "inspect", "reshard", "export"}) {
        CHECK(run_program({"checkpoint", verb, "--help"}).code == 0);
        CHECK(run_program({"checkpoint", verb}).code == 2);
    }
}
