// Scalars along a training run, as TensorBoard event files and as metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/files.h"

namespace fenwick {

struct Scalar {
    std::string_view tag;  ///< "train/loss"
    double value = 0;
};

/// A TensorBoard event file of scalars. Records are framed as TFRecords (length, masked CRC-32C, data, masked CRC-32C:
/// tensorflow/core/lib/io/record_writer.h) and hold an `Event` message (tensorflow/core/util/event.proto).
class EventFile {
public:
    /// A new file in `folder` (made if absent) named events.out.tfevents.SECONDS.HOST.PROCESS. `first_step`, when a run
    /// resumes: TensorBoard drops what earlier files say of this step and later ones. Throws UnavailableError.
    explicit EventFile(const std::filesystem::path& folder, std::optional<std::int64_t> first_step = std::nullopt);

    /// One event; the file is whole after every call.
    void append(std::int64_t step, std::span<const Scalar> scalars);
    void sync() { file_.sync(); }
    [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

private:
    void write_record(std::string_view data);
    AppendFile file_;
};

/// One JSON object a row, each with an integer "step" that grows.
class MetricsFile {
public:
    /// Continues `path` after the row of `last_step`: later rows, and a row that a killed process left half written,
    /// are cut off. Without a file, or without `last_step`, starts an empty one. Throws UnavailableError.
    explicit MetricsFile(const std::filesystem::path& path, std::optional<std::int64_t> last_step = std::nullopt);

    /// `row` has "step". Numbers that are not finite become null.
    void append(const nlohmann::ordered_json& row);
    void sync() { file_.sync(); }

private:
    AppendFile file_;
};

}  // namespace fenwick
