#include "tests/coordinator/training_folder.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <system_error>

#include "core/token_file.h"
#include "worker/training/training_checkpoint.h"

namespace fenwick::testing {

namespace fs = std::filesystem;

namespace {

struct Flat {
    std::vector<float> values;
    std::vector<float> exp_avg;
    std::vector<float> exp_avg_sq;
    bool operator==(const Flat&) const = default;
};

Flat state_of(const fs::path& run, std::int64_t step) {
    const TrainingCheckpoint checkpoint = latest_checkpoint(run / "checkpoints");
    REQUIRE(checkpoint.head().step == step);
    const auto size = static_cast<std::size_t>(checkpoint.total());
    Flat flat{std::vector<float>(size), std::vector<float>(size), std::vector<float>(size)};
    checkpoint.read(0, flat.values, flat.exp_avg, flat.exp_avg_sq);
    return flat;
}

}  // namespace

TrainingFolder::TrainingFolder() {
    (void)small_model(folder_);
    TokenFileWriter writer(folder_ / "t.tokens", {256, "", false});
    for (const std::size_t bytes : kTrainingDocumentBytes) {
        const std::string text = text_of(bytes, static_cast<std::uint32_t>(bytes));
        write_file(folder_ / ("d" + std::to_string(bytes) + ".txt"), text);
        writer.append(std::vector<std::int32_t>(text.begin(), text.end()));
        writer.end_document();
    }
    (void)writer.commit();
}

fs::path TrainingFolder::config(const std::string& name, const std::string& more, int steps, int save_steps) const {
    const fs::path file = folder_ / (name + ".toml");
    write_file(file,
               "[model]\nfolder = \"log_linear_mamba2\"\n[data]\nfiles = [\"t.tokens\"]\nsequence_tokens = 64\n"
               "batch_tokens = 128\nmicro_batches = 2\n[optimizer]\nlr = 1e-3\n[schedule]\nsteps = " +
                   std::to_string(steps) + "\nwarmup_steps = 4\nmin_lr = 1e-4\n[checkpoint]\nfolder = \"" + name +
                   "/checkpoints\"\nevery_steps = " + std::to_string(save_steps) + "\n[log]\nfolder = \"" + name +
                   "/log\"\n" + more);
    return file;
}

Arguments train(const fs::path& config, const Arguments& more) {
    Arguments all = {"train", "--config", config.string(), "--peak-tflops", "0.1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

std::vector<nlohmann::json> rows_of(const fs::path& run) {
    std::vector<nlohmann::json> rows = read_jsonl(run / "log/metrics.jsonl");
    for (nlohmann::json& row : rows) {
        for (const char* field : {"seconds", "tokens_per_second", "mfu"}) row.erase(field);
    }
    return rows;
}

bool has_rows(const fs::path& run, std::size_t least) {
    std::error_code error;
    if (!fs::exists(run / "log/metrics.jsonl", error)) return false;
    const std::string text = read_file(run / "log/metrics.jsonl");
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) >= least;
}

std::int64_t newest_step(const fs::path& run) {
    const std::vector<fs::path> all = list_checkpoints(run / "checkpoints");
    return all.empty() ? 0 : TrainingCheckpoint::open(all.back()).head().step;
}

void require_same_run(const fs::path& found, const fs::path& expected, int steps) {
    const std::vector<nlohmann::json> rows = rows_of(expected);
    REQUIRE(rows.size() == static_cast<std::size_t>(steps));
    const std::vector<nlohmann::json> others = rows_of(found);
    REQUIRE(others.size() == rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) CHECK(others[i] == rows[i]);
    CHECK(state_of(found, steps) == state_of(expected, steps));
}

}  // namespace fenwick::testing
