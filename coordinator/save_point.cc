#include "coordinator/save_point.h"

#include <spdlog/spdlog.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "coordinator/format_version.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "core/files.h"
#include "core/json.h"

namespace fenwick {

void write_save_point(const std::filesystem::path& file, const SavePoint& point) {
    nlohmann::ordered_json json;
    json["format_version"] = kOutputFormatVersion;
    json["input_hash"] = point.input_hash;
    json["tokens"] = point.tokens;
    json["position"] = point.position;
    json["nll_total"] = point.nll_total;  // the shortest decimal that reads back as the same double
    json["seconds"] = point.seconds;
    write_file_atomically(file, json.dump() + "\n");
}

std::optional<SavePoint> read_save_point(const std::filesystem::path& file) {
    if (!std::filesystem::exists(file)) return std::nullopt;
    try {
        const ConfigReader json = ConfigReader::open(file);
        if (json.require_int("format_version") != kOutputFormatVersion) {
            json.fail("format_version", std::to_string(kOutputFormatVersion));
        }
        SavePoint point;
        point.input_hash = json.require_string("input_hash");
        point.tokens = json.require_int("tokens");
        point.position = json.require_int("position");
        point.nll_total = json.require_double("nll_total");
        point.seconds = json.require_double("seconds");
        if (point.position <= 0 || point.position % kBlockTokens != 0 || point.position >= point.tokens) {
            json.fail("position", "a whole number of blocks inside the document");
        }
        return point;
    } catch (const Error& error) {
        if (error.code() == ExitCode::kUnavailable) throw;
        spdlog::warn("{}; the document starts anew", error.what());
        return std::nullopt;
    }
}

bool save_is_due(std::int64_t position, std::int64_t next_position, double elapsed, double save_seconds) {
    if (elapsed < save_seconds) return false;
    if (elapsed >= 2 * save_seconds) return true;
    const auto bits = [](std::int64_t tokens) {
        return std::popcount(static_cast<std::uint64_t>(tokens / kBlockTokens));
    };
    return bits(position) <= bits(next_position);
}

}  // namespace fenwick
