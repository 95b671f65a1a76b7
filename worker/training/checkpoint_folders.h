// The checkpoints of one run, as folders side by side. What is being written, replaced or deleted has a name that
// starts with a dot, so that a folder named step-N is always whole:
//
//   step-00001234             whole
//   .step-00001234.partial    being written
//   .step-00001234.replaced   about to be replaced by a new one of the same step
//   .step-00001234.deleted    being deleted
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fenwick {

/// "step-00001234"
[[nodiscard]] std::string step_name(std::int64_t step);
/// The number in a name that `step_name` gives.
[[nodiscard]] std::optional<std::int64_t> parse_step_name(const std::string& name);

/// Folders step-N in `folder`, oldest first; empty when there is none, or no such folder. Throws UnavailableError.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

/// Removes what killed writers left in `folder` and finishes a replacement that was cut off. Only where nobody writes:
/// on one rank, before training. A folder that does not exist is fine. Returns how many leftovers there were.
/// Throws UnavailableError.
std::int64_t clean_checkpoints(const std::filesystem::path& folder);

/// Where step `step` is written before it has its name.
[[nodiscard]] std::filesystem::path partial_path(const std::filesystem::path& folder, std::int64_t step);
/// An empty folder to write step `step` into, in `folder`, which is made if absent. Throws UnavailableError.
[[nodiscard]] std::filesystem::path begin_checkpoint(const std::filesystem::path& folder, std::int64_t step);
/// Gives it its name, durably; an older one of the same step goes. Returns the new path. Throws UnavailableError.
std::filesystem::path commit_checkpoint(const std::filesystem::path& folder, std::int64_t step);
/// Takes away what `begin_checkpoint` made; failures are logged.
void abandon_checkpoint(const std::filesystem::path& folder, std::int64_t step) noexcept;

/// Deletes the oldest checkpoints until `keep` are left (0: deletes none), never that of step `newest`. Failures are
/// logged: the new one is there.
void delete_old_checkpoints(const std::filesystem::path& folder, int keep, std::int64_t newest) noexcept;

}  // namespace fenwick
