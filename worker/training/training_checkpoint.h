// Checkpoints of a training run, sharded over ranks, readable on any other number of ranks.
//
//   FOLDER/step-00001234/shard-00003-of-00008.safetensors   rank 3's slice of the flat vectors: values, exp_avg,
//   exp_avg_sq,
//                                                           F32 [size]
//                        config.json                        the model's
//                        manifest.json                      written last (checkpoint_manifest.h)
//
// All is written aside, synced, and renamed (checkpoint_folders.h): a folder named step-N is whole, whatever was killed
// when.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/errors.h"
#include "parallel/communicator.h"
#include "worker/training/checkpoint_folders.h"
#include "worker/training/checkpoint_manifest.h"

namespace fenwick {

/// This rank's part of the flat vectors: all three of slice_of(total, world, rank).size (parallel/collectives.h).
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

/// A checkpoint for reading. Ranks of any world read the slices that they need.
class TrainingCheckpoint {
public:
    /// `folder`: a folder step-N. Reads the manifest and looks at names and sizes of the shards. Throws DataError
    /// naming file, field, expected and found, and which older checkpoint beside it is whole.
    [[nodiscard]] static TrainingCheckpoint open(const std::filesystem::path& folder);

    [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
    [[nodiscard]] const CheckpointHead& head() const { return head_; }
    [[nodiscard]] const std::vector<CheckpointShard>& shards() const { return shards_; }
    [[nodiscard]] int world() const { return static_cast<int>(shards_.size()); }  ///< ranks that wrote it
    [[nodiscard]] std::int64_t total() const { return total_; }                   ///< elements of a flat vector

    /// Elements [first, first + values.size()) of the flat vectors; exp_avg and exp_avg_sq have the size of `values`,
    /// or are empty where they are not wanted. Reads the shards that hold them, each checked against its hash. Throws
    /// as `open`.
    void read(std::int64_t first, std::span<float> values, std::span<float> exp_avg = {},
              std::span<float> exp_avg_sq = {}) const;
    /// Checks every shard against its hash. Throws as `open`.
    void verify() const;

    /// Throws DataError naming the first parameter, or field of config.json, in which a model differs from this
    /// checkpoint's.
    void check_model(std::string_view model_config, std::span<const ParameterPlace> table) const;

private:
    TrainingCheckpoint() = default;
    // As their namesakes, without advice on older checkpoints.
    static TrainingCheckpoint open_plainly(const std::filesystem::path& folder);
    void verify_plainly() const;
    void read_plainly(std::int64_t first, std::span<float> values, std::span<float> exp_avg,
                      std::span<float> exp_avg_sq) const;
    /// Throws `error` again, with the newest whole checkpoint before `folder`: where to go on from.
    [[noreturn]] static void refuse(const std::filesystem::path& folder, const DataError& error);

    std::filesystem::path folder_;
    CheckpointHead head_;
    std::int64_t total_ = 0;
    std::vector<CheckpointShard> shards_;
};

/// The newest checkpoint of a run, or the checkpoint itself when `folder` is one. Throws DataError when there is none,
/// or when the newest is damaged: the message says which older one is whole.
[[nodiscard]] TrainingCheckpoint latest_checkpoint(const std::filesystem::path& folder);

/// Writes the checkpoint again as OUTPUT/step-N for a world of `ranks`. Holds one rank's slices in memory. Throws
/// UsageError for ranks < 1 or an output that has this step already, as TrainingCheckpoint::read, UnavailableError.
std::filesystem::path reshard_checkpoint(const TrainingCheckpoint& from, int ranks,
                                         const std::filesystem::path& output);

enum class ExportDtype { kFp32, kBf16 };

/// Writes the model alone in the Hugging Face layout: config.json and model.safetensors. With kBf16 matrices are
/// rounded to nearest even; vectors (norms, biases, A_log, dt_bias, D) and L stay fp32, for decays do not survive
/// rounding. Holds the values in memory. Throws UsageError for a folder that holds a model already, as
/// TrainingCheckpoint::read, UnavailableError.
void export_checkpoint(const TrainingCheckpoint& from, const std::filesystem::path& output, ExportDtype dtype);

}  // namespace fenwick
