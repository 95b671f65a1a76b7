// A save point: where inside a document a run can go on. The state itself is the gang's file; this record names it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fenwick {

struct SavePoint {
    std::string input_hash;
    std::int64_t tokens = 0;    ///< of the whole document
    std::int64_t position = 0;  ///< tokens that have passed; as many losses are in the NLL file
    double nll_total = 0;       ///< of those losses, in NllSum's order
    double seconds = 0;
};

/// Appears whole or not at all. Throws UnavailableError.
void write_save_point(const std::filesystem::path& file, const SavePoint& point);

/// Nothing when there is no such file, or when it is damaged (the log says so).
[[nodiscard]] std::optional<SavePoint> read_save_point(const std::filesystem::path& file);

/// Whether to save at `position` now, `elapsed` seconds after the last save. A state's size grows with the set bits of
/// the block count: when the next pass ends at a cheaper position, and waiting for it does not double the interval,
/// that one is taken.
[[nodiscard]] bool save_is_due(std::int64_t position, std::int64_t next_position, double elapsed, double save_seconds);

}  // namespace fenwick
