#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/commands/commands.h"
#include "core/dtype.h"
#include "worker/model.h"
#include "worker/training/training_checkpoint.h"

namespace fenwick {
namespace {

using Json = nlohmann::ordered_json;

struct CheckpointOptions {
    std::filesystem::path path;
    std::filesystem::path output;
    int ranks = 0;
    std::string dtype = "fp32";
};

void print_json(const Json& json) {
    fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::int64_t shard_bytes(const TrainingCheckpoint& checkpoint) {
    std::int64_t bytes = 0;
    for (const CheckpointShard& shard : checkpoint.shards()) bytes += shard.bytes;
    return bytes;
}

/// The fields that all answers begin with.
Json summary_of(const TrainingCheckpoint& checkpoint) {
    Json json;
    json["status"] = "completed";
    json["exit_code"] = 0;
    json["checkpoint"] = checkpoint.folder().string();
    json["step"] = checkpoint.head().step;
    json["ranks"] = checkpoint.world();
    json["parameters"] = checkpoint.total();
    json["bytes"] = shard_bytes(checkpoint);
    return json;
}

int verify(const CheckpointOptions& options, bool json) {
    const TrainingCheckpoint checkpoint = latest_checkpoint(options.path);
    checkpoint.verify();
    if (json) {
        print_json(summary_of(checkpoint));
    } else {
        fmt::print("{}: whole: {} shards, {} bytes, every hash agrees\n", checkpoint.folder().string(),
                   checkpoint.world(), shard_bytes(checkpoint));
    }
    return 0;
}

int inspect(const CheckpointOptions& options, bool json) {
    const TrainingCheckpoint checkpoint = latest_checkpoint(options.path);
    const CheckpointHead& head = checkpoint.head();
    if (json) {
        Json report = summary_of(checkpoint);
        report["state"] = head.state;
        report["table"] = Json::array();
        for (const ParameterPlace& place : head.table) {
            report["table"].push_back({{"name", place.name}, {"shape", place.shape}, {"offset", place.offset}});
        }
        print_json(report);
        return 0;
    }
    fmt::print("{}\nstep        {}\nranks       {}\nparameters  {} in {} tensors\nbytes       {}\n",
               checkpoint.folder().string(), head.step, checkpoint.world(), checkpoint.total(), head.table.size(),
               shard_bytes(checkpoint));
    for (const auto& [name, value] : head.state.items()) {
        fmt::print("{:<11} {}\n", name, value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    fmt::print("\n");
    for (const ParameterPlace& place : head.table) fmt::print("{} {}\n", place.name, shape_text(place.shape));
    return 0;
}

int reshard(const CheckpointOptions& options, bool json) {
    const TrainingCheckpoint from = latest_checkpoint(options.path);
    const std::filesystem::path folder = reshard_checkpoint(from, options.ranks, options.output);
    if (json) {
        print_json(summary_of(TrainingCheckpoint::open(folder)));
    } else {
        fmt::print("{}: step {} for {} ranks (was for {})\n", folder.string(), from.head().step, options.ranks,
                   from.world());
    }
    return 0;
}

int export_model(const CheckpointOptions& options, bool json) {
    const TrainingCheckpoint from = latest_checkpoint(options.path);
    export_checkpoint(from, options.output, options.dtype == "bf16" ? ExportDtype::kBf16 : ExportDtype::kFp32);
    const std::shared_ptr<const Model> model = Model::load(options.output);  // as its users will
    if (json) {
        Json report = summary_of(from);
        report["output"] = options.output.string();
        report["family"] = model->family();
        report["dtype"] = options.dtype;
        report["model_hash"] = model->hash();
        print_json(report);
    } else {
        fmt::print("{}: a {} model of {} parameters, step {}, {}, hash {}\n", options.output.string(), model->family(),
                   model->parameter_count(), from.head().step, options.dtype, model->hash());
    }
    return 0;
}

}  // namespace

void add_checkpoint_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("checkpoint", "Check, show, reshard and export checkpoints of training");
    verb->require_subcommand(1);
    auto options = std::make_shared<CheckpointOptions>();
    using Action = int (*)(const CheckpointOptions&, bool);
    const auto add = [&](const char* name, const char* text, Action action) {
        CLI::App* sub = verb->add_subcommand(name, text);
        sub->add_option("CHECKPOINT", options->path, "A folder step-N, or a folder of these (then the newest)")
            ->required();
        sub->add_flag("--json", chosen.json, "Print one JSON object");
        sub->callback([options, &chosen, action] {
            chosen.run = [options, &chosen, action] { return action(*options, chosen.json); };
        });
        return sub;
    };
    add("verify", "Read all of it and compare every hash", verify);
    add("inspect", "Show its step, the trainer's state, and its parameters", inspect);
    CLI::App* to_ranks = add("reshard", "Write it again for another number of ranks", reshard);
    to_ranks->add_option("--ranks", options->ranks, "Ranks of the new one")->required()->check(CLI::Range(1, 99999));
    to_ranks->add_option("--output", options->output, "Folder for the new folder step-N")->required();
    CLI::App* to_model = add("export", "Write the model alone, in the Hugging Face layout", export_model);
    to_model->add_option("--output", options->output, "Folder for config.json and model.safetensors")->required();
    to_model
        ->add_option("--dtype", options->dtype,
                     "fp32, or bf16 for the matrices (norms, biases, decays and levels stay fp32)")
        ->check(CLI::IsMember({"fp32", "bf16"}))
        ->capture_default_str();
    verb->footer(
        "Training reads any checkpoint on any number of ranks as it is; reshard is for tools that want one file a "
        "rank.\n"
        "Example:\n  fenwick checkpoint export run/checkpoints --output model && fenwick score --model model ...");
}

}  // namespace fenwick
