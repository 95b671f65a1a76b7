// One writer a folder: a lock file that lasts as long as its process.
#pragma once

#include <filesystem>
#include <string>

#include "core/files.h"

namespace fenwick {

/// Makes `file`, with its folder, where they are absent, and locks it (flock). The lock goes with the descriptor; the
/// file stays. Throws UnavailableError with the text `busy` when another process holds it, and when the disk fails.
[[nodiscard]] FileDescriptor lock_file(const std::filesystem::path& file, const std::string& busy);

}  // namespace fenwick
