// A folder for what only this process needs, and only for a while.
#pragma once

#include <filesystem>
#include <string_view>

namespace fenwick {

/// A new folder in the system's place for temporary files (TMPDIR chooses another), for this user alone; removed with
/// everything in it when the object goes.
class ScratchFolder {
public:
    /// Its name is `prefix` and six characters that make it unique. Throws UnavailableError when it cannot be made.
    explicit ScratchFolder(std::string_view prefix);
    ~ScratchFolder();
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

private:
    std::filesystem::path path_;
};

}  // namespace fenwick
