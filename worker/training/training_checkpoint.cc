#include "worker/training/training_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/errors.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/safetensors.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

void check_size(const fs::path& path, const CheckpointShard& shard) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(path, error);
    if (error) {
        throw DataError(fmt::format("{}: the shard cannot be read: {}; {} names it", path.string(), error.message(),
                                    kManifestName));
    }
    if (size != static_cast<std::uintmax_t>(shard.bytes)) {
        throw DataError(fmt::format("{}: expected {} bytes, as {} says, found {}", path.string(), shard.bytes,
                                    kManifestName, size));
    }
}

void check_hash(const fs::path& path, const CheckpointShard& shard) {
    check_size(path, shard);
    const std::string found = hash_of(MappedFile::open(path));
    if (found != shard.hash) {
        throw DataError(fmt::format("{}: expected the hash {}, as {} says, found {}; the file is damaged",
                                    path.string(), shard.hash, kManifestName, found));
    }
}

/// The tensor `name` of a shard, [size].
const std::byte* find_vector(const SafetensorsFile& file, const std::string& name, std::int64_t size) {
    const TensorInfo* info = file.find(name);
    if (info == nullptr) throw DataError(fmt::format("{}: tensor \"{}\" is missing", file.path().string(), name));
    if (info->dtype != Dtype::kF32 || info->shape != std::vector<std::int64_t>{size}) {
        throw DataError(fmt::format("{}: tensor \"{}\": expected F32 [{}], found {} {}", file.path().string(), name,
                                    size, dtype_name(info->dtype), shape_text(info->shape)));
    }
    return info->data;
}

}  // namespace

void TrainingCheckpoint::refuse(const fs::path& folder, const DataError& error) {
    const auto step = parse_step_name(folder.filename().string());
    if (!step) throw DataError(error);
    const std::vector<fs::path> all = list_checkpoints(folder.has_parent_path() ? folder.parent_path() : ".");
    for (auto path = all.rbegin(); path != all.rend(); ++path) {
        if (parse_step_name(path->filename().string()) >= step) continue;
        try {
            open_plainly(*path).verify_plainly();
        } catch (const DataError&) {
            continue;
        }
        throw DataError(fmt::format("{}; {} before it is whole: move the damaged one away to go on from there",
                                    error.what(), path->string()));
    }
    throw DataError(fmt::format("{}; no older checkpoint beside it is whole", error.what()));
}

TrainingCheckpoint TrainingCheckpoint::open_plainly(const fs::path& folder) {
    TrainingCheckpoint checkpoint;
    checkpoint.folder_ = folder;
    read_manifest_files(folder, checkpoint.head_, checkpoint.shards_);
    checkpoint.total_ = total_elements(checkpoint.head_.table);
    for (const CheckpointShard& shard : checkpoint.shards_) check_size(folder / shard.file, shard);
    return checkpoint;
}

TrainingCheckpoint TrainingCheckpoint::open(const fs::path& folder) {
    try {
        return open_plainly(folder);
    } catch (const DataError& error) {
        refuse(folder, error);
    }
}

void TrainingCheckpoint::verify_plainly() const {
    for (const CheckpointShard& shard : shards_) {
        check_hash(folder_ / shard.file, shard);
        const SafetensorsFile file = SafetensorsFile::open(folder_ / shard.file);
        for (const char* name : {"values", "exp_avg", "exp_avg_sq"}) (void)find_vector(file, name, shard.size);
    }
}

void TrainingCheckpoint::verify() const {
    try {
        verify_plainly();
    } catch (const DataError& error) {
        refuse(folder_, error);
    }
}

void TrainingCheckpoint::read_plainly(std::int64_t first, std::span<float> values, std::span<float> exp_avg,
                                      std::span<float> exp_avg_sq) const {
    const std::int64_t end = first + std::ssize(values);
    const std::array<std::pair<const char*, std::span<float>>, 3> wanted = {
        {{"values", values}, {"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}}};
    for (const CheckpointShard& shard : shards_) {
        const std::int64_t from = std::max(first, shard.first);
        const std::int64_t count = std::min(end, shard.first + shard.size) - from;
        if (count <= 0) continue;
        check_hash(folder_ / shard.file, shard);
        const SafetensorsFile file = SafetensorsFile::open(folder_ / shard.file);
        for (const auto& [name, out] : wanted) {
            if (out.empty()) continue;
            const std::byte* in = find_vector(file, name, shard.size);
            std::memcpy(out.data() + (from - first), in + (from - shard.first) * std::int64_t{sizeof(float)},
                        static_cast<std::size_t>(count) * sizeof(float));
        }
    }
}

void TrainingCheckpoint::read(std::int64_t first, std::span<float> values, std::span<float> exp_avg,
                              std::span<float> exp_avg_sq) const {
    const auto fits = [&](std::span<float> part) { return part.empty() || part.size() == values.size(); };
    if (first < 0 || first > total_ || std::ssize(values) > total_ - first || !fits(exp_avg) || !fits(exp_avg_sq)) {
        throw InternalError(fmt::format("{}: read of elements [{}, +{}/{}/{}) of {}", folder_.string(), first,
                                        values.size(), exp_avg.size(), exp_avg_sq.size(), total_));
    }
    try {
        read_plainly(first, values, exp_avg, exp_avg_sq);
    } catch (const DataError& error) {
        refuse(folder_, error);
    }
}

void TrainingCheckpoint::check_model(std::string_view model_config, std::span<const ParameterPlace> table) const {
    const nlohmann::json own = parse_json(head_.model_config, (folder_ / kModelConfigName).string());
    const nlohmann::json other = parse_json(std::string(model_config), "the model's config.json");
    if (const nlohmann::json difference = nlohmann::json::diff(own, other); !difference.empty()) {
        const std::string field = difference.front().at("path").get<std::string>();
        throw DataError(fmt::format("{}: the checkpoint is of another model: config.json differs at {}",
                                    folder_.string(), in_quotes(field)));
    }
    const auto text = [](std::span<const ParameterPlace> places, std::size_t i) {
        return i < places.size()
                   ? fmt::format("{} {} at {}", places[i].name, shape_text(places[i].shape), places[i].offset)
                   : "no more";
    };
    for (std::size_t i = 0; i < std::max(table.size(), head_.table.size()); ++i) {
        if (i < table.size() && i < head_.table.size() && table[i] == head_.table[i]) continue;
        throw DataError(fmt::format("{}: the checkpoint is of another model: parameter {}: expected {}, found {}",
                                    folder_.string(), i, text(table, i), text(head_.table, i)));
    }
}

TrainingCheckpoint latest_checkpoint(const fs::path& folder) {
    const fs::path name = folder.has_filename() ? folder : folder.parent_path();  // "run/step-00000010/"
    if (parse_step_name(name.filename().string())) return TrainingCheckpoint::open(name);
    const std::vector<fs::path> all = list_checkpoints(folder);
    if (all.empty()) throw DataError(fmt::format("{}: expected folders step-N, found no checkpoint", folder.string()));
    return TrainingCheckpoint::open(all.back());
}

}  // namespace fenwick
