// Checkpoints of a training run, sharded over ranks, readable on any other number of ranks.
//
//   FOLDER/step-00001234/shard-00003-of-00008.safetensors   rank 3's slice of the flat vectors: values, exp_avg,
//   exp_avg_sq,
//                                                           F32 [size]
//                        config.json                        the model's
//                        manifest.json                      written last; README.md lists its fields
//
// All is written into FOLDER/.step-00001234.partial, synced, and renamed: a folder named step-N is whole, whatever was
// killed when. Older ones are deleted only after that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace fenwick {

/// Where a parameter lies in the flat vectors.
struct ParameterPlace {
    std::string name;                 ///< as in the model's checkpoint
    std::vector<std::int64_t> shape;  ///< as there
    std::int64_t offset = 0;          ///< of its first element; the places follow each other without holes

    friend bool operator==(const ParameterPlace&, const ParameterPlace&) = default;
};

/// What is known of a checkpoint beside its numbers; the same on all ranks.
struct CheckpointHead {
    std::int64_t step = 0;                            ///< optimiser steps done
    std::vector<ParameterPlace> table;                ///< of all parameters, in the order of the flat vectors
    std::string model_config;                         ///< text of the model's config.json
    nlohmann::json state = nlohmann::json::object();  ///< the trainer's: position in the data, seeds, counters, loss
};

/// Elements of the flat vectors. Throws InternalError for a table with holes.
[[nodiscard]] std::int64_t total_elements(std::span<const ParameterPlace> table);

/// This rank's part of the flat vectors, all of slice_of_rank(total, world, rank).size.
struct CheckpointSlice {
    std::span<const float> values;
    std::span<const float> exp_avg;
    std::span<const float> exp_avg_sq;
};

/// Collective over `world`, whose ranks must see one file system. Writes FOLDER/step-N, then deletes the oldest others
/// beyond `keep` (0: keeps all). Returns the new folder. When any rank fails, all throw the same UnavailableError,
/// naming the rank, and what was there before stays as it was.
std::filesystem::path write_training_checkpoint(Communicator& world, const std::filesystem::path& folder,
                                                const CheckpointHead& head, const CheckpointSlice& own, int keep);

/// Removes what killed writers left in `folder` and finishes a replacement that was cut off. Only where nobody writes:
/// on one rank, before training. A folder that does not exist is fine. Returns how many were removed.
std::int64_t clean_checkpoints(const std::filesystem::path& folder);

/// A checkpoint for reading.
class TrainingCheckpoint {
public:
    /// `folder`: a folder step-N. Reads the manifest and looks at names and sizes of the shards. Throws DataError
    /// naming file, field, expected and found, and which older checkpoint beside it is whole.
    [[nodiscard]] static TrainingCheckpoint open(const std::filesystem::path& folder);

    [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
    [[nodiscard]] const CheckpointHead& head() const { return head_; }
    [[nodiscard]] int world() const { return static_cast<int>(shards_.size()); }  ///< ranks that wrote it
    [[nodiscard]] std::int64_t total() const { return total_; }                   ///< elements of a flat vector
    [[nodiscard]] std::int64_t bytes() const;                                     ///< of all shards

    /// Elements [first, first + values.size()) of the flat vectors; the three spans have the same size, or are empty
    /// where not wanted. Reads only the shards that hold them, each checked against its hash. Throws as `open`.
    void read(std::int64_t first, std::span<float> values, std::span<float> exp_avg, std::span<float> exp_avg_sq) const;
    /// Checks every shard against its hash. Throws as `open`.
    void verify() const;

    /// Throws DataError naming the first parameter in which the table of a model differs from this checkpoint's.
    void check_table(std::span<const ParameterPlace> model) const;

private:
    struct Shard {
        std::string file;
        std::int64_t first = 0;
        std::int64_t size = 0;
        std::int64_t bytes = 0;
        std::string hash;
    };
    friend class CheckpointReader;
    std::filesystem::path folder_;
    CheckpointHead head_;
    std::int64_t total_ = 0;
    std::vector<Shard> shards_;
};

/// Folders step-N in `folder`, oldest first; empty when there is none, or no such folder.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

/// The newest checkpoint of a run, or the checkpoint itself when `folder` is one. Throws DataError when there is none,
/// or when the newest is damaged: the message says which older one is whole.
[[nodiscard]] TrainingCheckpoint latest_checkpoint(const std::filesystem::path& folder);

/// Writes the checkpoint again as OUTPUT/step-N for a world of `ranks`. Holds one rank's slice in memory.
std::filesystem::path reshard_checkpoint(const TrainingCheckpoint& from, int ranks,
                                         const std::filesystem::path& output);

enum class ExportDtype { kFp32, kBf16 };

/// Writes the model alone in the Hugging Face layout: config.json and model.safetensors. With kBf16 matrices are
/// rounded to nearest even; parameters of less than two wide dimensions (norms, biases, A_log, dt_bias, D, L) stay
/// fp32, for decays do not survive rounding. Throws UsageError for a folder that holds a model already.
void export_checkpoint(const TrainingCheckpoint& from, const std::filesystem::path& output, ExportDtype dtype);

}  // namespace fenwick
