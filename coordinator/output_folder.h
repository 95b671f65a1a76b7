// The output folder of a run: who may write in it, what lies where, and what may be removed.
//   results.jsonl  errors.jsonl  manifest.json   the result; manifest.json comes last and means that it is complete
//   nll/NAME.npy                                 losses of one document (NAME.npy.part until it is complete)
//   job.json                                     what a run with --resume must agree with
//   work/                                        lock, journal, save points, token files; gone after completion
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/files.h"

namespace fenwick {

enum class OpenMode { kFresh, kResume, kOverwrite };

class OutputFolder {
public:
    /// Creates `path` if it is absent, takes its lock and, with kOverwrite, removes what an earlier run left.
    /// Throws UsageError when `path` is no folder, holds anything with kFresh, holds files that are not Fenwick's with
    /// kOverwrite, or holds no Fenwick output with kResume (an empty or absent folder is fine); UnavailableError when
    /// it cannot be written or another run holds the lock.
    OutputFolder(std::filesystem::path path, OpenMode mode);
    OutputFolder(const OutputFolder&) = delete;
    OutputFolder& operator=(const OutputFolder&) = delete;
    /// Lets the lock go. What a run made of nothing but an empty folder is removed again if it wrote nothing.
    ~OutputFolder();

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::filesystem::path results() const { return path_ / "results.jsonl"; }
    [[nodiscard]] std::filesystem::path errors() const { return path_ / "errors.jsonl"; }
    [[nodiscard]] std::filesystem::path manifest() const { return path_ / "manifest.json"; }
    [[nodiscard]] std::filesystem::path job() const { return path_ / "job.json"; }
    [[nodiscard]] std::filesystem::path work() const { return path_ / "work"; }
    [[nodiscard]] std::filesystem::path journal() const { return work() / "rows.jsonl"; }
    [[nodiscard]] std::filesystem::path token_folder() const { return work() / "tokens"; }
    /// Relative to the folder, as rows name it. `name`: from file_name_for_id.
    [[nodiscard]] static std::string nll_name(const std::string& name) { return "nll/" + name + ".npy"; }
    [[nodiscard]] std::filesystem::path nll(const std::string& name) const { return path_ / nll_name(name); }
    [[nodiscard]] std::filesystem::path nll_part(const std::string& name) const {
        return path_ / (nll_name(name) + ".part");
    }
    [[nodiscard]] std::filesystem::path save_point(const std::string& name) const { return work() / (name + ".json"); }
    [[nodiscard]] std::filesystem::path saved_state(const std::string& name, std::int64_t position) const {
        return work() / (name + "." + std::to_string(position) + ".safetensors");
    }

    /// Removes work/ (with the lock) and unfinished NLL files. After this the folder is not locked.
    void remove_work();

private:
    std::filesystem::path path_;
    FileDescriptor lock_;
    bool created_ = false;
};

/// Whether a run with --resume would find something finished in the output folder `path`: rows, or a save point.
[[nodiscard]] bool has_progress(const std::filesystem::path& path);

/// Removes a file that may be absent. Throws UnavailableError.
void remove_file(const std::filesystem::path& file);

/// Files under `folder` that no run of Fenwick writes, as paths relative to it, sorted; at most `limit` of them.
/// Throws UnavailableError when it cannot be listed.
[[nodiscard]] std::vector<std::string> foreign_files(const std::filesystem::path& folder, std::size_t limit);

}  // namespace fenwick
