#include "coordinator/output_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "coordinator/folder_lock.h"
#include "core/errors.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "lock";
constexpr std::size_t kNamesInMessage = 5;

[[noreturn]] void throw_unavailable(const fs::path& path, const char* action, const std::error_code& error) {
    throw UnavailableError(fmt::format("{}: cannot {}: {}", path.string(), action, error.message()));
}

bool is_temporary(std::string_view name) {
    return name.starts_with(".fenwick-") && name.ends_with(".tmp");
}

/// Whether an entry of the output folder itself is one that Fenwick makes. Folders are looked into elsewhere.
bool is_own_file(std::string_view name) {
    constexpr std::array<std::string_view, 4> kOwn = {"results.jsonl", "errors.jsonl", "manifest.json", "job.json"};
    return is_temporary(name) || std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end();
}

bool is_own_nll(std::string_view name) {
    return is_temporary(name) || name.ends_with(".npy") || name.ends_with(".npy.part");
}

template <class Visit>
void for_each_entry(const fs::path& folder, Visit&& visit) {
    std::error_code error;
    fs::directory_iterator it(folder, error);
    for (; !error && it != fs::directory_iterator(); it.increment(error)) visit(*it);
    if (error) throw_unavailable(folder, "list", error);
}

bool holds_nothing(const fs::path& folder) {
    bool empty = true;
    for_each_entry(folder, [&](const fs::directory_entry&) { empty = false; });
    return empty;
}

/// Real folders only: a link could lead to files that are not Fenwick's.
bool is_plain_folder(const fs::directory_entry& entry) {
    std::error_code error;
    return fs::is_directory(entry.symlink_status(error));
}

void remove_everything(const fs::path& path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) throw_unavailable(path, "remove", error);
}

/// All that an earlier run left but the lock; only after foreign_files found nothing else.
void remove_outputs(const fs::path& folder) {
    // The manifest first: a folder that is half removed must not look complete.
    remove_everything(folder / "manifest.json");
    for_each_entry(folder, [&](const fs::directory_entry& entry) {
        if (entry.path().filename() != "work") remove_everything(entry.path());
    });
    for_each_entry(folder / "work", [&](const fs::directory_entry& entry) {
        if (entry.path().filename() != kLockName) remove_everything(entry.path());
    });
}

}  // namespace

bool has_progress(const fs::path& path) {
    std::error_code error;
    const auto has_bytes = [&](const fs::path& file) {
        const std::uintmax_t size = fs::file_size(file, error);
        return !error && size > 0;
    };
    if (has_bytes(path / "results.jsonl") || has_bytes(path / "work" / "rows.jsonl")) return true;
    // A save point is the one kind of file in work/ that ends so (OutputFolder::save_point).
    for (fs::directory_iterator it(path / "work", error); !error && it != fs::directory_iterator();
         it.increment(error)) {
        if (it->path().extension() == ".json") return true;
    }
    return false;
}

void remove_file(const fs::path& file) {
    std::error_code error;
    fs::remove(file, error);
    if (error) throw_unavailable(file, "remove", error);
}

std::vector<std::string> foreign_files(const fs::path& folder, std::size_t limit) {
    std::vector<std::string> found;
    for_each_entry(folder, [&](const fs::directory_entry& entry) {
        const std::string name = entry.path().filename().string();
        if (name == "nll" && is_plain_folder(entry)) {
            for_each_entry(entry.path(), [&](const fs::directory_entry& inner) {
                const std::string file = inner.path().filename().string();
                if (!is_own_nll(file)) found.push_back("nll/" + file);
            });
        } else if (name == "work" && is_plain_folder(entry)) {
            // Every run puts a lock there first: a folder without one belongs to somebody else.
            if (!fs::exists(entry.path() / kLockName) && !holds_nothing(entry.path())) found.push_back("work/");
        } else if (!is_own_file(name) || is_plain_folder(entry)) {
            found.push_back(name);
        }
    });
    std::sort(found.begin(), found.end());
    if (found.size() > limit) found.resize(limit);
    return found;
}

OutputFolder::OutputFolder(fs::path path, OpenMode mode) : path_(std::move(path)) {
    std::error_code error;
    const fs::file_status status = fs::status(path_, error);
    if (status.type() == fs::file_type::none) throw_unavailable(path_, "open the output folder", error);
    if (fs::exists(status) && !fs::is_directory(status)) {
        throw UsageError(fmt::format("--output {}: expected a folder, found a file", path_.string()));
    }
    if (fs::exists(status)) {
        if (!holds_nothing(path_)) {
            if (mode == OpenMode::kFresh) {
                throw UsageError(
                    fmt::format("--output {}: the folder is not empty; use --resume to continue what is there, "
                                "--overwrite to replace it, or another folder",
                                path_.string()));
            }
            const std::vector<std::string> foreign = foreign_files(path_, kNamesInMessage);
            if (mode == OpenMode::kOverwrite && !foreign.empty()) {
                throw UsageError(
                    fmt::format("--output {}: --overwrite removes only what fenwick wrote, and these are not such: {}; "
                                "move them away or use another folder",
                                path_.string(), fmt::join(foreign, ", ")));
            }
            const bool own = fs::exists(job()) || fs::exists(results()) || fs::exists(work() / kLockName);
            if (mode == OpenMode::kResume && !own && !foreign.empty()) {
                throw UsageError(
                    fmt::format("--output {}: --resume found no output of fenwick there, but other files: {}",
                                path_.string(), fmt::join(foreign, ", ")));
            }
        }
    } else {
        fs::create_directories(path_, error);
        if (error) throw_unavailable(path_, "create the output folder", error);
        created_ = true;
    }
    lock_ = lock_file(work() / kLockName,
                      fmt::format("--output {}: another run of fenwick is writing there; wait for its end or use "
                                  "another folder",
                                  path_.string()));
    if (mode == OpenMode::kOverwrite) remove_outputs(path_);
    for (const fs::path& folder : {path_ / "nll", work()}) {
        fs::create_directories(folder, error);
        if (error) throw_unavailable(folder, "create", error);
    }
    remove_temporaries(path_);
    remove_temporaries(path_ / "nll");
    remove_temporaries(work());
}

void OutputFolder::remove_work() {
    for_each_entry(path_ / "nll", [](const fs::directory_entry& entry) {
        if (entry.path().extension() == ".part") remove_everything(entry.path());
    });
    remove_everything(work());
    lock_ = FileDescriptor();
}

OutputFolder::~OutputFolder() {
    if (lock_.get() < 0) return;
    try {
        // Nothing was written: leave nothing, so that the same command can be given again.
        bool untouched = true;
        for_each_entry(path_, [&](const fs::directory_entry& entry) {
            if (!is_plain_folder(entry)) untouched = false;
        });
        if (!untouched || !holds_nothing(path_ / "nll")) return;
        for_each_entry(work(), [&](const fs::directory_entry& entry) {
            if (entry.path().filename() != kLockName) untouched = false;
        });
        if (!untouched) return;
        remove_everything(work());
        remove_everything(path_ / "nll");
        if (created_) remove_everything(path_);
    } catch (const std::exception& error) {
        spdlog::warn("{}", error.what());
    }
}

}  // namespace fenwick
