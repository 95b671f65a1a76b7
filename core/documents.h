// Documents: what the user gives (.txt, .jsonl, .npy, .bin), seen as numbered tokens that are read by stretches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tokenizer.h"

namespace fenwick {

enum class DocumentContent { kText, kNpy, kRawTokens, kJsonText, kJsonTokens };

/// One document found in the inputs, in input order, before its tokens are looked at.
struct DocumentRef {
    std::string custom_id;  ///< a file's name without its ending, the row's custom_id, or "line-N" for a row without;
                            ///< unique among the good documents of a job
    std::filesystem::path source;  ///< the input file that names it
    std::int64_t line = 0;         ///< JSONL row, counted from 1; 0 for a whole file
    std::string error;             ///< not empty: the document is bad (reason, with file and line); it has no tokens

    // Where the content lies.
    DocumentContent content = DocumentContent::kText;
    std::filesystem::path content_path;  ///< the file with the text or ids; `source` but for rows with "path"
    std::int64_t offset = 0;             ///< the JSONL row's bytes [offset, offset + length) in `source`
    std::int64_t length = 0;
    int element_bytes = 0;  ///< kRawTokens: width of an id
    bool is_signed = false;
    bool has_targets = false;  ///< kJsonTokens: the row says which tokens are targets
};

/// A document's tokens, read by stretches, never whole.
class TokenReader {
public:
    virtual ~TokenReader() = default;
    [[nodiscard]] virtual std::int64_t size() const = 0;
    /// Bytes of the original text when known (bits per byte needs them), else -1 (ready token ids).
    [[nodiscard]] virtual std::int64_t text_bytes() const = 0;
    /// Tokens [first, first + out.size()). Throws DataError naming file and position for an id outside the vocabulary.
    virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;
};

struct DocumentOptions {
    const Tokenizer* tokenizer = nullptr;  ///< bytes or SentencePiece
    std::int64_t vocab_size = 0;
    bool prepend_bos = false;
    std::int32_t bos_id = -1;
    std::filesystem::path work_folder;  ///< where tokenised text is kept while it is read (removed by the reader);
                                        ///< empty: the system's temporary folder
    bool check_ids =
        true;  ///< ready ids are checked against the vocabulary when the document is opened; without it, as read
};

/// Why a row of a .jsonl may not name this file; empty: it may.
using PathCheck = std::function<std::string(const std::filesystem::path& path)>;

/// Lists the documents of `inputs` in order, one for a file by its ending (letter case does not matter):
/// - .txt .md .text .dict: text;
/// - .jsonl: a document for every row that is not blank: `custom_id` (string or number), then one of `text`, `path`
/// (relative
///   to the file's folder; not another .jsonl), `tokens` (integers; for training, `targets` may say which are scored).
///   Unknown fields are ignored, with one warning for a name. Lines of up to 256 MiB;
/// - .npy: ids as any integer type;
/// - .u8.bin .u16.bin .u32.bin .i32.bin: ids without a header, little-endian; .bin alone is int32.
/// Throws UsageError for another ending. Everything else that is wrong makes a bad document (`error` set) of that input
/// or row and leaves the rest alone: an absent file, a directory, a malformed row, a custom_id that came before, a
/// "path" that `may_name` objects to (it is asked before the file is looked at).
[[nodiscard]] std::vector<DocumentRef> list_documents(std::span<const std::filesystem::path> inputs,
                                                      const PathCheck& may_name = {});

/// Throws DataError (message names file, line or byte, expected and found) for content that cannot be read, and for a
/// document whose `error` is set; UsageError for `prepend_bos` without a bos_id inside the vocabulary.
[[nodiscard]] std::unique_ptr<TokenReader> open_document(const DocumentRef& document, const DocumentOptions& options);

/// Of a document with `has_targets`: for every token whether its row names it as a target. Throws as `open_document`.
[[nodiscard]] std::vector<bool> read_targets(const DocumentRef& document);

/// XXH3-128 (32 hexadecimal digits) of the ids as little-endian int32: the same for the same tokens whatever file they
/// came in. Reads the document once, in bounded memory.
[[nodiscard]] std::string document_hash(const TokenReader& reader);

/// A file name (no ending) for a custom_id: bytes outside [A-Za-z0-9._-] become %XX. Never empty, "." or "..", at most
/// 200 bytes: longer ones keep their start and end in a hash. Different ids give different names.
[[nodiscard]] std::string file_name_for_id(const std::string& id);

}  // namespace fenwick
