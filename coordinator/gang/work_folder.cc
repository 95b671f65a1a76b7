#include "coordinator/gang/work_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace fenwick {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "fenwick-worker-";

/// Folders of processes of this host that were killed.
void remove_orphans(const fs::path& parent) {
    std::error_code error;
    for (fs::directory_iterator it(parent, error); !error && it != fs::directory_iterator(); it.increment(error)) {
        const std::string name = it->path().filename().string();
        if (!name.starts_with(kPrefix)) continue;
        const std::string rest = name.substr(kPrefix.size());
        pid_t pid = 0;
        const auto [end, wrong] = std::from_chars(rest.data(), rest.data() + rest.size(), pid);
        const bool gone = wrong == std::errc() && pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH;
        std::error_code ignored;  // somebody else's, or being removed by another gang
        if (gone) fs::remove_all(it->path(), ignored);
    }
}

}  // namespace

ScratchFolder make_work_folder() {
    remove_orphans(fs::temp_directory_path());
    return ScratchFolder(fmt::format("{}{}-", kPrefix, getpid()));
}

}  // namespace fenwick
