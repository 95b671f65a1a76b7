#include "parallel/end_guard.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace fenwick {
namespace {

namespace fs = std::filesystem;

std::string read_whole(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

/// Value of `name` in a process's environment as /proc shows it: NAME=value, each ended by a zero byte.
std::optional<std::string> environment_of(const std::string& all, std::string_view name) {
    std::size_t at = 0;
    while (at < all.size()) {
        const std::size_t end = std::min(all.find('\0', at), all.size());
        const std::string_view entry(all.data() + at, end - at);
        if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
            return std::string(entry.substr(name.size() + 1));
        }
        at = end + 1;
    }
    return std::nullopt;
}

/// One letter from /proc/PID/stat, behind the program's name in parentheses.
char state_of(const fs::path& process) {
    const std::string stat = read_whole(process / "stat");
    const std::size_t name_end = stat.rfind(')');
    return name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
}

}  // namespace

EndGuard::EndGuard(std::chrono::milliseconds timeout, std::function<void()> on_timeout)
    : thread_([this, timeout, act = std::move(on_timeout)] {
          std::unique_lock<std::mutex> lock(mutex_);
          if (!ended_.wait_for(lock, timeout, [&] { return over_; })) act();
      }) {}

EndGuard::~EndGuard() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        over_ = true;
    }
    ended_.notify_all();
    thread_.join();
}

void end_process(const std::string& message, ExitCode code) noexcept {
    try {
        spdlog::error("{}", message);
        spdlog::default_logger()->flush();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the process has to end, with or without its message
    }
    std::_Exit(static_cast<int>(code));
}

std::string missing_ranks_on_host() {
    const char* space = std::getenv("PMIX_NAMESPACE");
    const char* size = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (space == nullptr || size == nullptr) return {};
    int local_size = 0;
    const std::string_view text(size);
    std::from_chars(text.data(), text.data() + text.size(), local_size);
    std::vector<std::string> found;
    int seen = 0;
    std::error_code error;
    for (fs::directory_iterator it("/proc", error); !error && it != fs::directory_iterator(); it.increment(error)) {
        const std::string name = it->path().filename().string();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        const std::string environment = read_whole(it->path() / "environ");
        if (environment_of(environment, "PMIX_NAMESPACE") != space) continue;
        const std::optional<std::string> rank = environment_of(environment, "PMIX_RANK");
        if (!rank) continue;
        ++seen;
        const char state = state_of(it->path());
        if (state == 'T' || state == 't') found.push_back(fmt::format("rank {} (process {}) is stopped", *rank, name));
    }
    if (seen < local_size) {
        found.push_back(fmt::format("{} of this host's {} processes are not there", local_size - seen, local_size));
    }
    return fmt::format("{}", fmt::join(found, "; "));
}

}  // namespace fenwick
