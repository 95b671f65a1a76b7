#include "worker/training/checkpoint_folders.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/errors.h"
#include "core/files.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";
constexpr std::string_view kPartial = ".partial";
constexpr std::string_view kReplaced = ".replaced";
constexpr std::string_view kDeleted = ".deleted";

[[noreturn]] void throw_unavailable(const fs::path& path, std::string_view action, const std::error_code& error) {
    throw UnavailableError(fmt::format("{}: cannot {}: {}", path.string(), action, error.message()));
}

fs::path aside(const fs::path& folder, std::int64_t step, std::string_view ending) {
    return folder / fmt::format(".{}{}", step_name(step), ending);
}

bool is_there(const fs::path& path) {
    std::error_code error;
    return fs::exists(fs::symlink_status(path, error));
}

void rename_durably(const fs::path& from, const fs::path& to) {
    std::error_code error;
    fs::rename(from, to, error);
    if (error) throw_unavailable(from, fmt::format("rename to {}", to.string()), error);
    sync_folder(to.parent_path());
}

void remove_tree(const fs::path& path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) throw_unavailable(path, "remove", error);
}

/// First out of sight, then away: a checkpoint that is half deleted must not look like one.
void delete_checkpoint(const fs::path& folder, std::int64_t step) {
    remove_tree(aside(folder, step, kDeleted));
    rename_durably(folder / step_name(step), aside(folder, step, kDeleted));
    remove_tree(aside(folder, step, kDeleted));
}

std::vector<fs::path> entries_of(const fs::path& folder) {
    std::vector<fs::path> entries;
    if (!is_there(folder)) return entries;
    std::error_code error;
    fs::directory_iterator it(folder, error);
    for (; !error && it != fs::directory_iterator(); it.increment(error)) entries.push_back(it->path());
    if (error) throw_unavailable(folder, "list", error);
    return entries;
}

/// The step in ".step-N" + `ending`.
std::optional<std::int64_t> parse_aside(const std::string& name, std::string_view ending) {
    if (!name.starts_with('.') || !name.ends_with(ending) || name.size() <= ending.size()) return std::nullopt;
    return parse_step_name(name.substr(1, name.size() - 1 - ending.size()));
}

}  // namespace

std::string step_name(std::int64_t step) {
    return fmt::format("{}{:08}", kStep, step);
}

std::optional<std::int64_t> parse_step_name(const std::string& name) {
    if (!name.starts_with(kStep)) return std::nullopt;
    std::int64_t step = -1;
    const char* end = name.data() + name.size();
    const auto [stop, fault] = std::from_chars(name.data() + kStep.size(), end, step);
    if (fault != std::errc() || stop != end || step < 0 || name != step_name(step)) return std::nullopt;
    return step;
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
    std::vector<std::pair<std::int64_t, fs::path>> found;
    for (const fs::path& entry : entries_of(folder)) {
        if (const auto step = parse_step_name(entry.filename().string())) found.emplace_back(*step, entry);
    }
    std::sort(found.begin(), found.end());
    std::vector<fs::path> paths;
    paths.reserve(found.size());
    for (auto& [step, path] : found) paths.push_back(std::move(path));
    return paths;
}

std::int64_t clean_checkpoints(const fs::path& folder) {
    std::int64_t leftovers = 0;
    for (const fs::path& entry : entries_of(folder)) {
        const std::string name = entry.filename().string();
        if (parse_aside(name, kPartial) || parse_aside(name, kDeleted)) {
            remove_tree(entry);
        } else if (const auto step = parse_aside(name, kReplaced)) {
            // Killed between two renames: the old one is whole and takes its name again.
            if (is_there(folder / step_name(*step))) {
                remove_tree(entry);
            } else {
                rename_durably(entry, folder / step_name(*step));
            }
        } else {
            continue;
        }
        ++leftovers;
        spdlog::info("{}: left by a run that was killed; cleaned", entry.string());
    }
    return leftovers;
}

fs::path partial_path(const fs::path& folder, std::int64_t step) {
    return aside(folder, step, kPartial);
}

fs::path begin_checkpoint(const fs::path& folder, std::int64_t step) {
    const fs::path partial = partial_path(folder, step);
    remove_tree(partial);
    std::error_code error;
    fs::create_directories(partial, error);
    if (error) throw_unavailable(partial, "create", error);
    return partial;
}

fs::path commit_checkpoint(const fs::path& folder, std::int64_t step) {
    const fs::path path = folder / step_name(step);
    const fs::path old = aside(folder, step, kReplaced);
    sync_folder(partial_path(folder, step));
    if (is_there(path)) {
        remove_tree(old);
        rename_durably(path, old);
    }
    try {
        rename_durably(partial_path(folder, step), path);
    } catch (const Error&) {
        if (is_there(old) && !is_there(path)) rename_durably(old, path);
        throw;
    }
    remove_tree(old);
    return path;
}

void abandon_checkpoint(const fs::path& folder, std::int64_t step) noexcept {
    try {
        remove_tree(partial_path(folder, step));
    } catch (const std::exception& error) {
        spdlog::warn("{}", error.what());
    }
}

void delete_old_checkpoints(const fs::path& folder, int keep, std::int64_t newest) noexcept {
    if (keep <= 0) return;
    try {
        const std::vector<fs::path> all = list_checkpoints(folder);
        auto surplus = std::ssize(all) - keep;
        for (const fs::path& path : all) {
            const std::int64_t step = parse_step_name(path.filename().string()).value();
            if (surplus <= 0) return;
            if (step == newest) continue;
            delete_checkpoint(folder, step);
            --surplus;
        }
    } catch (const std::exception& error) {
        spdlog::warn("an old checkpoint could not be deleted: {}", error.what());
    }
}

}  // namespace fenwick
