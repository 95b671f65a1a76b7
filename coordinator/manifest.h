// manifest.json: what a complete output holds. It is written last; where it is, everything else is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/job_identity.h"

namespace fenwick {

struct Manifest {
    JobIdentity identity;
    std::string family;
    std::int64_t parameters = 0;
    std::optional<int> ranks;                 ///< absent, as pass_tokens, where several gangs took part
    std::optional<std::int64_t> pass_tokens;  ///< kUnlimitedPass: the whole document
    std::int64_t documents = 0;
    std::int64_t completed = 0;
    std::int64_t failed = 0;
    std::vector<std::string> files;  ///< relative to the output folder
};

/// Adds size and hash (XXH3, 128 bits) of each file and writes `file`, whole or not at all. Throws UnavailableError,
/// DataError when a listed file is missing.
void write_manifest(const std::filesystem::path& folder, const std::filesystem::path& file, const Manifest& manifest);

/// A text file of `lines`, whole or not at all. Throws UnavailableError.
void write_lines(const std::filesystem::path& file, const std::vector<std::string>& lines);

}  // namespace fenwick
