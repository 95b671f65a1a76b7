#include "core/scratch_folder.h"

#include <fmt/format.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "core/errors.h"

namespace fenwick {

ScratchFolder::ScratchFolder(std::string_view prefix) {
    const std::string place_of_unique_part(6, 'X');  // as mkdtemp(3) wants it
    std::string name =
        (std::filesystem::temp_directory_path() / fmt::format("{}{}", prefix, place_of_unique_part)).string();
    if (::mkdtemp(name.data()) == nullptr) {
        throw UnavailableError(
            fmt::format("{}: cannot create: {}; TMPDIR chooses another place", name, std::strerror(errno)));
    }
    path_ = name;
}

ScratchFolder::~ScratchFolder() {
    std::error_code ignored;  // what stays is in the place for temporary files
    std::filesystem::remove_all(path_, ignored);
}

}  // namespace fenwick
