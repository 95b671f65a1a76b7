#include "coordinator/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "core/errors.h"

namespace fenwick {
namespace {

[[noreturn]] void throw_unavailable(const std::filesystem::path& path, const char* action,
                                    const std::error_code& error) {
    throw UnavailableError(fmt::format("{}: cannot {}: {}", path.string(), action, error.message()));
}

std::error_code last_error() {
    return {errno, std::generic_category()};
}

}  // namespace

FileDescriptor lock_file(const std::filesystem::path& file, const std::string& busy) {
    // Whoever ends may remove the file and its folder: a lock taken on a name that is gone is taken again.
    for (int attempt = 0; attempt < 100; ++attempt) {
        std::error_code error;
        std::filesystem::create_directories(file.parent_path(), error);
        if (error) throw_unavailable(file.parent_path(), "create", error);
        FileDescriptor fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
        if (fd.get() < 0) {
            if (errno == ENOENT) continue;
            throw_unavailable(file, "create the lock file", last_error());
        }
        if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) throw UnavailableError(busy);
            throw_unavailable(file, "lock", last_error());
        }
        struct stat opened = {};
        struct stat named = {};
        if (::fstat(fd.get(), &opened) != 0) throw_unavailable(file, "stat", last_error());
        if (::stat(file.c_str(), &named) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev) {
            return fd;
        }
    }
    throw UnavailableError(fmt::format("{}: cannot take the lock: the file keeps disappearing", file.string()));
}

}  // namespace fenwick
