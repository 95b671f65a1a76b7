// job.json: the parameters that decide every number of a run. A run that resumes must have the same ones.
#pragma once

#include <filesystem>
#include <string>

namespace fenwick {

struct JobIdentity {
    std::string model_hash;
    std::string tokenizer;  ///< Tokenizer::identity()
    bool bos = false;
    std::string device;
    std::string dtype;
    std::string levels;  ///< extend, strict

    bool operator==(const JobIdentity&) const = default;
};

/// Throws UnavailableError.
void write_job(const std::filesystem::path& file, const JobIdentity& job);

/// Throws UsageError naming the first field in which `file` disagrees with `job`, DataError for a file that is damaged
/// or of another format version.
void check_job(const std::filesystem::path& file, const JobIdentity& job);

}  // namespace fenwick
