#include "worker/init.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "coordinator/commands/commands.h"
#include "worker/model.h"

namespace fenwick {
namespace {

int run_init(const RandomModelOptions& options, bool json) {
    write_random_model(options);
    const std::shared_ptr<const Model> model = Model::load(options.output);
    if (json) {
        nlohmann::ordered_json report;
        report["status"] = "completed";
        report["output"] = options.output.string();
        report["family"] = model->family();
        report["parameters"] = model->parameter_count();
        report["model_hash"] = model->hash();
        fmt::print("{}\n", report.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    } else {
        fmt::print("{}: a random {} model of {} parameters, hash {}\n", options.output.string(), model->family(),
                   model->parameter_count(), model->hash());
    }
    return 0;
}

}  // namespace

void add_init_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("init", "Write a small model with random weights, for trials and tests");
    auto options = std::make_shared<RandomModelOptions>();
    verb->add_option("--family", options->family,
                     "model_type: log_linear_mamba2, mamba2, gated_deltanet, h_gated_deltanet")
        ->required();
    verb->add_option("--output", options->output, "Folder for config.json and model.safetensors")->required();
    verb->add_option("--hidden", options->hidden_size, "Width of the model")->capture_default_str();
    verb->add_option("--layers", options->layers, "Layers")->capture_default_str();
    verb->add_option("--heads", options->heads, "Heads of a layer")->capture_default_str();
    verb->add_option("--head-dim", options->head_dim, "Width of a head")->capture_default_str();
    verb->add_option("--state", options->state_size, "State size of a Mamba-2 head")->capture_default_str();
    verb->add_option("--vocab", options->vocab_size, "Vocabulary; 256 for bytes")->capture_default_str();
    verb->add_option("--levels", options->levels, "Levels with weights of their own (2^(levels - 1) tokens)")
        ->capture_default_str();
    verb->add_option(
            "--deviation", options->initializer_range,
            "Standard deviation of the weights (lambda's projections: at most 0.02); 0.02 is small for narrow models")
        ->capture_default_str();
    verb->add_option("--level-scale", options->level_scale,
                     "What L starts with; below 1 a log-linear model stays near its linear form for longer")
        ->capture_default_str();
    verb->add_option("--dt-range", options->dt_range, "Steps that the heads start with: lowest and highest dt")
        ->capture_default_str();
    verb->add_option("--a-range", options->a_range, "Decay rates that the heads start with: lowest and highest a")
        ->capture_default_str();
    verb->add_option("--seed", options->seed, "Seed of the random weights")->capture_default_str();
    verb->add_flag("--json", chosen.json, "Print one JSON object");
    verb->footer("Example:\n  fenwick init --family log_linear_mamba2 --output model --hidden 64 --layers 2");
    verb->callback([options, &chosen] { chosen.run = [options, &chosen] { return run_init(*options, chosen.json); }; });
}

}  // namespace fenwick
