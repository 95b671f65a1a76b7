// The manifest of a training checkpoint: what is known of it beside its numbers. manifest.json is one object, keys
// sorted:
//
//   format              "fenwick-training-1"
//   step                optimiser steps done
//   elements            of each flat vector
//   model_config_hash   XXH3 of config.json beside it
//   table               [{name, shape, offset}]: the parameters, without holes, in the order of the flat vectors
//   shards              [{file, first, size, bytes, hash}]: the slices, without holes, in rank order; `bytes` and
//   `hash` (XXH3)
//                       are of the file
//   state               the trainer's: position in the data, seeds, counters, loss
//   hash                XXH3 of this object without `hash`, as compact JSON
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace fenwick {

/// Where a parameter lies in the flat vectors.
struct ParameterPlace {
    std::string name;                 ///< as in the model's checkpoint
    std::vector<std::int64_t> shape;  ///< as there
    std::int64_t offset = 0;          ///< of its first element; the places follow each other without holes

    friend bool operator==(const ParameterPlace&, const ParameterPlace&) = default;
};

/// The same on all ranks.
struct CheckpointHead {
    std::int64_t step = 0;                            ///< optimiser steps done
    std::vector<ParameterPlace> table;                ///< of all parameters, in the order of the flat vectors
    std::string model_config;                         ///< text of the model's config.json
    nlohmann::json state = nlohmann::json::object();  ///< the trainer's own
};

/// One rank's slice.
struct CheckpointShard {
    std::string file;  ///< a plain name
    std::int64_t first = 0;
    std::int64_t size = 0;
    std::int64_t bytes = 0;
    std::string hash;
};

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kModelConfigName = "config.json";

/// Elements of the flat vectors. Throws InternalError for a table with holes.
[[nodiscard]] std::int64_t total_elements(std::span<const ParameterPlace> table);

/// "shard-00003-of-00008.safetensors"
[[nodiscard]] std::string shard_name(int rank, int world);

/// Writes config.json and, last, manifest.json into `folder`. Throws UnavailableError.
void write_manifest_files(const std::filesystem::path& folder, const CheckpointHead& head,
                          std::span<const CheckpointShard> shards);

/// Fills `head` and `shards` from the files in `folder`. Throws DataError naming file, field, expected and found.
void read_manifest_files(const std::filesystem::path& folder, CheckpointHead& head,
                         std::vector<CheckpointShard>& shards);

}  // namespace fenwick
