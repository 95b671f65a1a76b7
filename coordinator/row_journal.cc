#include "coordinator/row_journal.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace fenwick {
namespace {

/// Size of what ends with a newline, looking backwards from the end.
std::int64_t whole_lines(const AppendFile& file) {
    constexpr std::int64_t kStep = 1 << 16;
    std::vector<char> buffer(kStep);
    std::int64_t end = file.size();
    while (end > 0) {
        const std::int64_t first = std::max<std::int64_t>(0, end - kStep);
        const std::span<char> piece(buffer.data(), static_cast<std::size_t>(end - first));
        file.read(first, std::as_writable_bytes(piece));
        if (const auto* newline = static_cast<const char*>(memrchr(piece.data(), '\n', piece.size()))) {
            return first + (newline - piece.data()) + 1;
        }
        end = first;
    }
    return 0;
}

AppendFile open_journal(const std::filesystem::path& path) {
    if (!std::filesystem::exists(path)) {
        AppendFile file = AppendFile::create(path);
        sync_folder(path.parent_path());
        return file;
    }
    AppendFile file = AppendFile::open(path);
    if (const std::int64_t whole = whole_lines(file); whole < file.size()) file.truncate(whole);
    return file;
}

}  // namespace

void read_rows(const std::filesystem::path& path, const std::function<void(const Row&)>& visit) {
    if (!std::filesystem::exists(path)) return;
    const MappedFile file = MappedFile::open(path, EmptyFile::kAllow);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    std::int64_t line = 0;
    for (std::size_t first = 0; first < text.size();) {
        const std::size_t newline = text.find('\n', first);
        const bool torn = newline == std::string_view::npos;
        const std::string_view content = text.substr(first, torn ? text.size() - first : newline - first);
        first += content.size() + 1;
        ++line;
        const Row row = Row::parse(content.begin(), content.end(), nullptr, false);
        if (row.is_object()) {
            visit(row);
        } else if (!torn && !content.empty()) {
            spdlog::warn("{} line {}: no JSON object; this document is computed again", path.string(), line);
        }
    }
}

RowJournal::RowJournal(const std::filesystem::path& file) : file_(open_journal(file)) {}

void RowJournal::append(const Row& row) {
    file_.append(to_line(row) + "\n");
    file_.sync();
}

}  // namespace fenwick
