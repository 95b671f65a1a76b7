#include "coordinator/job_identity.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/format_version.h"
#include "core/errors.h"
#include "core/files.h"
#include "core/json.h"

namespace fenwick {
namespace {

nlohmann::ordered_json to_json(const JobIdentity& job) {
    nlohmann::ordered_json json;
    json["format_version"] = kOutputFormatVersion;
    json["model_hash"] = job.model_hash;
    json["tokenizer"] = job.tokenizer;
    json["bos"] = job.bos;
    json["device"] = job.device;
    json["dtype"] = job.dtype;
    json["levels"] = job.levels;
    return json;
}

}  // namespace

void write_job(const std::filesystem::path& file, const JobIdentity& job) {
    write_file_atomically(file, to_json(job).dump(2) + "\n");
}

void check_job(const std::filesystem::path& file, const JobIdentity& job) {
    const nlohmann::json found = read_json_file(file);
    if (!found.is_object()) {
        throw DataError(fmt::format("{}: expected a JSON object; use --overwrite to start anew", file.string()));
    }
    const nlohmann::ordered_json expected = to_json(job);
    for (const auto& [name, value] : expected.items()) {
        const auto field = found.find(name);
        if (field == found.end()) {
            throw DataError(fmt::format("{}: field {} is missing; use --overwrite to start anew", file.string(), name));
        }
        if (*field != nlohmann::json(value)) {
            throw UsageError(fmt::format(
                "--resume: {} was started with {} {}, this command has {}; give the same parameters, or use "
                "--overwrite to start anew",
                file.string(), name, field->dump(), value.dump()));
        }
    }
}

}  // namespace fenwick
