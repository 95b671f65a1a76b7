// `export_checkpoint` of training_checkpoint.h.
#include <fmt/format.h>

#include <deque>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/errors.h"
#include "core/files.h"
#include "core/safetensors_writer.h"
#include "worker/training/training_checkpoint.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

/// Vectors (norms, biases, A_log, dt_bias, D), and L, which is [heads, levels].
bool stays_fp32(const ParameterPlace& place) {
    return place.shape.size() < 2 || place.name.ends_with(".L");
}

void prepare(const fs::path& output) {
    std::error_code error;
    fs::create_directories(output, error);
    if (error) throw UnavailableError(fmt::format("{}: cannot create: {}", output.string(), error.message()));
    for (const char* name : {kModelConfigName, "model.safetensors", "model.safetensors.index.json"}) {
        if (fs::exists(output / name)) {
            throw UsageError(fmt::format("{} already holds {}; choose another folder", output.string(), name));
        }
    }
}

}  // namespace

void export_checkpoint(const TrainingCheckpoint& from, const fs::path& output, ExportDtype dtype) {
    prepare(output);
    std::vector<float> values(static_cast<std::size_t>(from.total()));
    from.read(0, values);
    SafetensorsWriter writer;
    writer.set_metadata("format", "pt");  // transformers loads no file without it
    std::deque<std::vector<std::uint16_t>> rounded;
    const std::vector<ParameterPlace>& table = from.head().table;
    for (std::size_t i = 0; i < table.size(); ++i) {
        const ParameterPlace& place = table[i];
        const std::int64_t end = i + 1 < table.size() ? table[i + 1].offset : from.total();
        const std::span<const float> own = std::span<const float>(values).subspan(
            static_cast<std::size_t>(place.offset), static_cast<std::size_t>(end - place.offset));
        if (dtype == ExportDtype::kFp32 || stays_fp32(place)) {
            writer.add(place.name, place.shape, own);
        } else {
            std::vector<std::uint16_t>& bits = rounded.emplace_back(own.size());
            round_to_bf16(own, bits);
            writer.add(place.name, Dtype::kBF16, place.shape, std::as_bytes(std::span(bits)));
        }
    }
    writer.write(output / "model.safetensors");
    write_file_atomically(output / kModelConfigName, from.head().model_config);
}

}  // namespace fenwick
