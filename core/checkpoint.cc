#include "core/checkpoint.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/hash.h"
#include "core/json.h"

namespace fenwick {
namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

/// The index's weight_map turned round: shard -> names of its tensors, both sorted.
std::map<std::string, std::vector<std::string>> read_index(const std::filesystem::path& path) {
    const nlohmann::json index = read_json_file(path);
    const auto refuse = [&](const std::string& why) { throw DataError(fmt::format("{}: {}", path.string(), why)); };
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
        refuse("expected an object with a field \"weight_map\" that maps tensors to shards");
    }
    std::map<std::string, std::vector<std::string>> shards;
    for (const auto& [name, shard] : index["weight_map"].items()) {
        if (!shard.is_string()) refuse(fmt::format("tensor {}: expected the name of a shard", in_quotes(name)));
        const auto& file = shard.get_ref<const std::string&>();
        // A shard is a plain name in the same folder: an index must not reach other files.
        if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
            file.find('\0') != std::string::npos) {
            refuse(fmt::format("tensor {}: shard {} is no plain file name", in_quotes(name), in_quotes(file)));
        }
        shards[file].push_back(name);
    }
    if (shards.empty()) refuse("\"weight_map\" names no tensor");
    return shards;
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& folder) {
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error)) {
        throw DataError(fmt::format("{}: is no folder; a checkpoint is a folder with config.json and {}",
                                    folder.string(), kSingleName));
    }
    Checkpoint checkpoint;
    checkpoint.folder_ = folder;
    const bool has_index = std::filesystem::exists(folder / kIndexName, error);
    const bool has_single = std::filesystem::exists(folder / kSingleName, error);
    if (has_index) {
        checkpoint.open_sharded(folder / kIndexName);
    } else if (has_single) {
        checkpoint.open_single(folder / kSingleName);
    } else {
        throw DataError(fmt::format("{}: no weights: looked for {} and {}", folder.string(), kIndexName, kSingleName));
    }
    return checkpoint;
}

void Checkpoint::open_single(const std::filesystem::path& path) {
    files_.push_back(SafetensorsFile::open(path));
    for (const TensorInfo& info : files_.back().tensors()) entries_[info.name] = {0, &info, false};
}

void Checkpoint::open_sharded(const std::filesystem::path& index) {
    const auto shards = read_index(index);
    if (!shards.contains(kSingleName) && std::filesystem::exists(folder_ / kSingleName)) {
        spdlog::warn("{}: not used: {} names other files", (folder_ / kSingleName).string(), kIndexName);
    }
    for (const auto& [shard, names] : shards) {
        const auto path = folder_ / shard;
        if (!std::filesystem::exists(path)) {
            throw DataError(fmt::format("{}: the shard is absent; {} names it for {} tensors, first {}", path.string(),
                                        kIndexName, names.size(), in_quotes(names.front())));
        }
        files_.push_back(SafetensorsFile::open(path));
        for (const std::string& name : names) {
            const TensorInfo* info = files_.back().find(name);
            if (info == nullptr) {
                throw DataError(
                    fmt::format("{}: has no tensor {}, but {} says so; index and shards are of different "
                                "versions: fetch the checkpoint again",
                                path.string(), in_quotes(name), kIndexName));
            }
            entries_[name] = {files_.size() - 1, info, false};
        }
    }
    for (const SafetensorsFile& file : files_) {
        for (const TensorInfo& info : file.tensors()) {
            const auto it = entries_.find(info.name);
            if (it == entries_.end()) {
                extra_.push_back(info.name);
            } else if (it->second.info != &info) {
                spdlog::warn("{}: its tensor {} is not used: {} names another shard for it", file.path().string(),
                             in_quotes(info.name), kIndexName);
            }
        }
    }
}

const Checkpoint::Entry& Checkpoint::entry(std::string_view name) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) {
        throw DataError(
            fmt::format("{}: the checkpoint has no tensor {} ({} tensors in {} files); it is incomplete, or "
                        "config.json is of another model",
                        folder_.string(), in_quotes(name), entries_.size(), files_.size()));
    }
    return it->second;
}

const TensorInfo& Checkpoint::info(std::string_view name) const {
    return *entry(name).info;
}

std::vector<std::string> Checkpoint::names() const {
    std::vector<std::string> all;
    all.reserve(entries_.size());
    for (const auto& [name, entry] : entries_) all.push_back(name);
    return all;
}

Buffer<float> Checkpoint::load_f32(std::string_view name, std::span<const std::int64_t> shape) {
    const Entry& found = entry(name);
    const SafetensorsFile& file = files_[found.file];
    const TensorInfo& info = *found.info;
    if (!std::ranges::equal(info.shape, shape)) {
        throw DataError(fmt::format("{}: tensor {}: expected shape {} (from config.json), found {}",
                                    file.path().string(), in_quotes(name), shape_text(shape), shape_text(info.shape)));
    }
    file.check_not_cut();
    Buffer<float> values(info.bytes / element_size(info.dtype));
    convert_to_f32(info.dtype, info.data, {values.data(), static_cast<std::size_t>(values.size())},
                   fmt::format("{}: tensor {}", file.path().string(), in_quotes(name)));
    entries_.find(name)->second.used = true;
    return values;
}

void Checkpoint::ignore(std::string_view name) {
    if (const auto it = entries_.find(name); it != entries_.end()) it->second.used = true;
    std::erase(extra_, name);
}

std::vector<std::string> Checkpoint::unused() const {
    std::vector<std::string> names = extra_;
    for (const auto& [name, entry] : entries_) {
        if (!entry.used) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::string Checkpoint::hash() const {
    Hasher hasher;
    const auto text = [&](std::string_view value) {
        hasher.update_number(value.size());
        hasher.update(value);
    };
    for (const auto& [name, entry] : entries_) {
        const TensorInfo& info = *entry.info;
        text(name);
        text(dtype_name(info.dtype));
        hasher.update_number(info.shape.size());
        for (const std::int64_t dimension : info.shape) hasher.update_number(static_cast<std::uint64_t>(dimension));
        files_[entry.file].check_not_cut();
        hasher.update({info.data, static_cast<std::size_t>(info.bytes)});
    }
    return hasher.hex();
}

std::int64_t Checkpoint::parameters() const {
    std::int64_t total = 0;
    for (const auto& [name, entry] : entries_) total += entry.info->bytes / element_size(entry.info->dtype);
    return total;
}

}  // namespace fenwick
