#include "core/documents.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "core/errors.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/jsonl.h"
#include "core/npy.h"

namespace fenwick {
namespace {

struct FileKind {
    std::string_view ending;
    DocumentContent content = DocumentContent::kText;
    int element_bytes = 0;
    bool is_signed = false;
    bool is_jsonl = false;
};

// Longer endings first.
constexpr std::array<FileKind, 11> kFileKinds = {{
    {".u8.bin", DocumentContent::kRawTokens, 1, false},
    {".u16.bin", DocumentContent::kRawTokens, 2, false},
    {".u32.bin", DocumentContent::kRawTokens, 4, false},
    {".i32.bin", DocumentContent::kRawTokens, 4, true},
    {".bin", DocumentContent::kRawTokens, 4, true},
    {".npy", DocumentContent::kNpy},
    {".jsonl", DocumentContent::kText, 0, false, true},
    {".txt", DocumentContent::kText},
    {".md", DocumentContent::kText},
    {".text", DocumentContent::kText},
    {".dict", DocumentContent::kText},
}};

constexpr std::string_view kKnownEndings =
    ".txt, .md, .text, .dict (text), .jsonl, .npy, .bin, .u8.bin, .u16.bin, .u32.bin, .i32.bin";

const FileKind* find_kind(const std::filesystem::path& path) {
    std::string name = path.filename().string();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    for (const FileKind& kind : kFileKinds) {
        if (name.size() > kind.ending.size() && name.ends_with(kind.ending)) return &kind;
    }
    return nullptr;
}

/// Why `path` cannot be a document; empty when it is a regular file.
std::string find_fault(const std::filesystem::path& path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found)
        return fmt::format("{}: there is no such file", path.string());
    if (error) return fmt::format("{}: {}", path.string(), error.message());
    if (std::filesystem::is_directory(status))
        return fmt::format("{}: is a directory; name the files in it", path.string());
    if (!std::filesystem::is_regular_file(status)) return fmt::format("{}: is no regular file", path.string());
    return {};
}

class Lister {
public:
    explicit Lister(const PathCheck& may_name) : may_name_(may_name) {}

    void add_input(const std::filesystem::path& input) {
        const std::string fault = find_fault(input);
        const FileKind* kind = find_kind(input);
        if (kind == nullptr && fault.empty()) {
            throw UsageError(
                fmt::format("{}: unknown kind of input; known endings: {}", input.string(), kKnownEndings));
        }
        if (kind != nullptr && kind->is_jsonl && fault.empty()) {
            add_rows(input);
        } else {
            add_file(input, kind, fault);
        }
    }
    std::vector<DocumentRef> take() { return std::move(documents_); }

private:
    void add_file(const std::filesystem::path& input, const FileKind* kind, std::string fault) {
        DocumentRef document;
        document.source = input;
        document.error = std::move(fault);
        document.custom_id = file_id(input, kind);
        if (kind != nullptr) set_content(document, input, *kind);
        if (document.error.empty()) claim_id(document, input.string());
        documents_.push_back(std::move(document));
    }

    static std::string file_id(const std::filesystem::path& input, const FileKind* kind) {
        std::string name = input.filename().string();
        if (name.empty()) name = input.parent_path().filename().string();  // "folder/"
        return kind == nullptr ? name : name.substr(0, name.size() - kind->ending.size());
    }

    static void set_content(DocumentRef& document, const std::filesystem::path& path, const FileKind& kind) {
        document.content = kind.content;
        document.content_path = path;
        document.element_bytes = kind.element_bytes;
        document.is_signed = kind.is_signed;
    }

    void add_rows(const std::filesystem::path& input) {
        std::optional<MappedFile> file;
        try {
            file = MappedFile::open(input, EmptyFile::kAllow);
        } catch (const Error& error) {
            add_file(input, find_kind(input), error.what());
            return;
        }
        std::int64_t rows = 0;
        for_each_jsonl_line(*file, [&](const JsonlLine& line) {
            add_row(*file, line);
            ++rows;
        });
        if (rows == 0) spdlog::warn("{}: no rows", input.string());
    }

    void add_row(const MappedFile& file, const JsonlLine& line) {
        DocumentRef document;
        document.source = file.path();
        document.line = line.number;
        document.offset = line.offset;
        document.length = line.length;
        document.custom_id = fmt::format("line-{}", line.number);
        const std::string where = fmt::format("{} line {}", file.path().string(), line.number);
        if (line.length > kMaxJsonlLineBytes) {
            document.error = fmt::format(
                "{}: {} bytes, more than the limit of {} for a row; put the text into a file of its own and name it "
                "with \"path\"",
                where, line.length, kMaxJsonlLineBytes);
            documents_.push_back(std::move(document));
            return;
        }
        const auto bytes =
            file.bytes().subspan(static_cast<std::size_t>(line.offset), static_cast<std::size_t>(line.length));
        const JsonlRow row = parse_jsonl_row({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, false);
        if (row.has_id) document.custom_id = row.custom_id;
        document.has_targets = row.has_targets;
        document.error = row.error.empty() ? set_row_content(document, row) : row.error;
        if (!document.error.empty()) document.error = fmt::format("{}: {}", where, document.error);
        if (row.has_id) claim_id(document, where);
        warn_of_unknown_fields(row, where);
        documents_.push_back(std::move(document));
    }

    /// Returns why the row's content cannot be used.
    std::string set_row_content(DocumentRef& document, const JsonlRow& row) const {
        document.content_path = document.source;
        document.content =
            row.content == RowContent::kTokens ? DocumentContent::kJsonTokens : DocumentContent::kJsonText;
        if (row.content != RowContent::kPath) return {};
        const auto path = document.source.parent_path() / row.value;
        if (may_name_) {
            if (std::string objection = may_name_(path); !objection.empty()) return "field \"path\": " + objection;
        }
        if (std::string fault = find_fault(path); !fault.empty()) return "field \"path\": " + fault;
        const FileKind* kind = find_kind(path);
        if (kind == nullptr || kind->is_jsonl) {
            return fmt::format(
                "field \"path\": {}: not a kind of file that a row may name; known endings: {} (not .jsonl)",
                path.string(), kKnownEndings);
        }
        set_content(document, path, *kind);
        return {};
    }

    /// A bad row keeps its id for itself too: two rows with one id could not be told apart in the results.
    void claim_id(DocumentRef& document, const std::string& where) {
        const auto [first, is_new] = owners_.try_emplace(document.custom_id, Owner{document.source, document.line});
        if (is_new || !document.error.empty()) return;
        const Owner& owner = first->second;
        std::string first_place = owner.source == document.source ? "" : owner.source.string();
        if (owner.line > 0) first_place += fmt::format("{}line {}", first_place.empty() ? "" : " ", owner.line);
        if (first_place.empty()) first_place = owner.source.string();
        document.error =
            fmt::format("{}: duplicate of {} (custom_id {})", where, first_place, in_quotes(document.custom_id));
    }

    void warn_of_unknown_fields(const JsonlRow& row, const std::string& where) {
        for (const auto& name : row.unknown_fields) {
            if (!warned_.insert(name).second) continue;
            spdlog::warn(
                "{}: unknown field {} is ignored, here and in other rows; known are custom_id, text, path, tokens, "
                "targets",
                where, in_quotes(name));
        }
    }

    struct Owner {
        std::filesystem::path source;
        std::int64_t line;
    };
    const PathCheck& may_name_;
    std::vector<DocumentRef> documents_;
    std::unordered_map<std::string, Owner> owners_;
    std::set<std::string> warned_;
};

}  // namespace

std::vector<DocumentRef> list_documents(std::span<const std::filesystem::path> inputs, const PathCheck& may_name) {
    Lister lister(may_name);
    for (const auto& input : inputs) lister.add_input(input);
    return lister.take();
}

std::string document_hash(const TokenReader& reader) {
    constexpr std::int64_t kStretch = std::int64_t{1} << 16;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kStretch, reader.size())));
    Hasher hasher;
    for (std::int64_t first = 0; first < reader.size(); first += kStretch) {
        const auto some = std::span(ids).first(static_cast<std::size_t>(std::min(kStretch, reader.size() - first)));
        reader.read(first, some);
        hasher.update(std::as_bytes(some));
    }
    return hasher.hex();
}

}  // namespace fenwick
