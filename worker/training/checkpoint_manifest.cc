#include "worker/training/checkpoint_manifest.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "core/dtype.h"
#include "core/errors.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"

namespace fenwick {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "fenwick-training-1";
constexpr std::int64_t kMaxConfigBytes = std::int64_t{64} << 20;

std::string hash_of_text(std::string_view text) {
    Hasher hasher;
    hasher.update(text);
    return hasher.hex();
}

std::string dump(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json describe(const CheckpointHead& head, std::span<const CheckpointShard> shards) {
    Json table = Json::array();
    for (const ParameterPlace& place : head.table) {
        table.push_back({{"name", place.name}, {"shape", place.shape}, {"offset", place.offset}});
    }
    Json parts = Json::array();
    for (const CheckpointShard& shard : shards) {
        parts.push_back({{"file", shard.file},
                         {"first", shard.first},
                         {"size", shard.size},
                         {"bytes", shard.bytes},
                         {"hash", shard.hash}});
    }
    return {{"format", kFormat},
            {"step", head.step},
            {"elements", total_elements(head.table)},
            {"model_config_hash", hash_of_text(head.model_config)},
            {"table", std::move(table)},
            {"shards", std::move(parts)},
            {"state", head.state}};
}

void check_format(const ConfigReader& manifest) {
    if (manifest.require_string("format") != kFormat) manifest.fail("format", fmt::format("\"{}\"", kFormat));
    Json content = manifest.json();
    content.erase("hash");
    const std::string hash = hash_of_text(dump(content));
    if (manifest.require_string("hash") != hash) {
        manifest.fail("hash", fmt::format("\"{}\", the hash of the other fields (the file is damaged)", hash));
    }
}

std::int64_t at_least_zero(const ConfigReader& object, std::string_view field) {
    const std::int64_t value = object.require_int(field);
    if (value < 0) object.fail(field, "a number from 0 on");
    return value;
}

/// The elements of the array `field`, each an object.
std::vector<ConfigReader> read_objects(const ConfigReader& manifest, const std::string& field) {
    std::vector<ConfigReader> objects;
    for (const Json& element : manifest.get_array(field)) {
        objects.emplace_back(element, fmt::format("{}: {}[{}]", manifest.source(), field, objects.size()));
    }
    return objects;
}

std::int64_t read_table(const ConfigReader& manifest, std::vector<ParameterPlace>& table) {
    std::int64_t next = 0;
    std::set<std::string> names;
    for (const ConfigReader& entry : read_objects(manifest, "table")) {
        ParameterPlace place{entry.require_string("name"), entry.get_ints("shape"), entry.require_int("offset")};
        if (!names.insert(place.name).second) entry.fail("name", "a name that no other parameter has");
        if (place.offset != next) entry.fail("offset", fmt::format("{}, the end of the one before", next));
        const std::optional<std::int64_t> size = array_elements(place.shape);
        if (!size || *size > std::numeric_limits<std::int64_t>::max() - next) {
            entry.fail("shape", "dimensions from 0 on whose product fits 63 bits");
        }
        next += *size;
        table.push_back(std::move(place));
    }
    if (at_least_zero(manifest, "elements") != next) {
        manifest.fail("elements", fmt::format("{}, the elements of the table", next));
    }
    return next;
}

void read_shards(const ConfigReader& manifest, std::int64_t elements, std::vector<CheckpointShard>& shards) {
    std::int64_t next = 0;
    for (const ConfigReader& entry : read_objects(manifest, "shards")) {
        CheckpointShard shard{entry.require_string("file"), entry.require_int("first"), at_least_zero(entry, "size"),
                              at_least_zero(entry, "bytes"), entry.require_string("hash")};
        if (shard.first != next) entry.fail("first", fmt::format("{}, the end of the one before", next));
        if (shard.size > elements - next) entry.fail("size", fmt::format("at most {}", elements - next));
        next += shard.size;
        shards.push_back(std::move(shard));
    }
    if (shards.empty() || next != elements) {
        throw DataError(
            fmt::format("{}: field \"shards\": expected slices of {} elements in all, found {} in {} shards",
                        manifest.source(), elements, next, shards.size()));
    }
    // Names follow from the count: the manifest cannot point at other files.
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const std::string expected = shard_name(static_cast<int>(i), static_cast<int>(shards.size()));
        if (shards[i].file != expected) {
            throw DataError(fmt::format("{}: shards[{}]: field \"file\": expected \"{}\", found {}", manifest.source(),
                                        i, expected, in_quotes(shards[i].file)));
        }
    }
}

}  // namespace

std::int64_t total_elements(std::span<const ParameterPlace> table) {
    std::int64_t next = 0;
    for (const ParameterPlace& place : table) {
        const std::optional<std::int64_t> size = array_elements(place.shape);
        if (!size || place.offset != next) {
            throw InternalError(fmt::format("parameter {}: shape {} at {}, expected at {}", place.name,
                                            shape_text(place.shape), place.offset, next));
        }
        next += *size;
    }
    return next;
}

std::string shard_name(int rank, int world) {
    return fmt::format("shard-{:05}-of-{:05}.safetensors", rank, world);
}

void write_manifest_files(const std::filesystem::path& folder, const CheckpointHead& head,
                          std::span<const CheckpointShard> shards) {
    write_file_atomically(folder / kModelConfigName, head.model_config);
    Json manifest = describe(head, shards);
    const std::string hash = hash_of_text(dump(manifest));
    manifest["hash"] = hash;
    write_file_atomically(folder / kManifestName, manifest.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void read_manifest_files(const std::filesystem::path& folder, CheckpointHead& head,
                         std::vector<CheckpointShard>& shards) {
    try {
        const ConfigReader manifest = ConfigReader::open(folder / kManifestName);
        check_format(manifest);
        head.step = at_least_zero(manifest, "step");
        read_shards(manifest, read_table(manifest, head.table), shards);
        const std::optional<ConfigReader> state = manifest.get_object("state");
        if (!state) manifest.fail("state", "an object");
        head.state = state->json();
        head.model_config = read_text_file(folder / kModelConfigName, kMaxConfigBytes);
        const std::string hash = hash_of_text(head.model_config);
        if (manifest.require_string("model_config_hash") != hash) {
            manifest.fail("model_config_hash", fmt::format("\"{}\", the hash of {}", hash, kModelConfigName));
        }
    } catch (const ConfigError& error) {
        throw DataError(error.what());  // nobody configures with this file: it is damaged
    }
}

}  // namespace fenwick
