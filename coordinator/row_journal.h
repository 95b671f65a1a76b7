// Finished rows as they come: work/rows.jsonl, one durable line a document, in the order in which they were finished.
#pragma once

#include <filesystem>
#include <functional>

#include "coordinator/rows.h"
#include "core/files.h"

namespace fenwick {

/// Calls `visit` with each row of a JSONL file that a killed process may have left half written: lines that are no JSON
/// object are left out (a torn last one silently, others with a warning in the log). An absent file has none. Throws
/// UnavailableError.
void read_rows(const std::filesystem::path& file, const std::function<void(const Row&)>& visit);

class RowJournal {
public:
    /// Opens `file` for appending, made if absent; a torn last line is cut off. Throws UnavailableError.
    explicit RowJournal(const std::filesystem::path& file);
    /// Returns when the row is on the disk.
    void append(const Row& row);

private:
    AppendFile file_;
};

}  // namespace fenwick
