// The order of training data: token files cut into items, shuffled by epochs, packed into micro-batches.
//
//   item         a piece of one document of at most `sequence_tokens` tokens; only the last piece of a document is
//   shorter.
//                It is a sequence of its own: nothing flows between items. Numbered in the order of files and
//                documents.
//   epoch        all items once, in the order shuffled(0), shuffled(1), ... (item_shuffle.h)
//   micro-batch  the next items of that order which together hold at most `batch_tokens` tokens; it ends with its epoch
//
// The sequence of micro-batches depends on the files and on DatasetOptions alone. Of G data-parallel groups, group g
// takes the micro-batches g, g + G, ... from a position on; a position is the same on every group, and enough to go on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/token_file.h"

namespace fenwick {

struct DatasetOptions {
    std::int64_t sequence_tokens = 0;  ///< >= 1
    std::int64_t batch_tokens = 0;     ///< >= sequence_tokens
    std::uint64_t seed = 0;
    bool shuffle = true;  ///< false: items in the order of their numbers, every epoch alike
};

/// Where the next micro-batch starts.
struct DataPosition {
    std::int64_t epoch = 0;
    std::int64_t item = 0;  ///< in the epoch's order, [0, items]

    friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

/// One item, ready for training.
struct Sequence {
    std::int64_t item = 0;              ///< its number
    std::int64_t document = 0;          ///< number of its document, over all files
    std::int64_t first = 0;             ///< place in the document of its first token
    std::vector<std::int32_t> tokens;   ///< at least one
    std::vector<std::int32_t> targets;  ///< [tokens]: the document's token after each, also over the end of a piece;
                                        ///< kNoTarget at the document's end and where the mask says so
};

/// Read-only once made; may be used from several threads at once.
class Dataset {
public:
    /// Opens token files. Throws UsageError for options that make no sense, DataError for files that are damaged, were
    /// made with different tokenizers, or hold no token at all. Memory: 8 bytes a document.
    Dataset(std::span<const std::filesystem::path> files, const DatasetOptions& options);

    [[nodiscard]] std::int64_t items() const { return item_ends_.empty() ? 0 : item_ends_.back(); }
    [[nodiscard]] std::int64_t tokens() const;
    [[nodiscard]] std::int64_t documents() const { return static_cast<std::int64_t>(item_ends_.size()); }
    /// The largest of the files'.
    [[nodiscard]] std::int64_t vocab_size() const;
    [[nodiscard]] const std::string& tokenizer() const { return files_.front().file.tokenizer(); }
    /// Hash of the files' content and of everything else that the order depends on: a checkpoint's position means
    /// something only where this is the same.
    [[nodiscard]] const std::string& identity() const { return identity_; }

    /// The micro-batch of group `group` of `groups` from `position` on; moves `position` past the micro-batches of all
    /// groups (so that it stays the same on all). Never empty. Throws DataError for a position that does not exist.
    [[nodiscard]] std::vector<Sequence> next(DataPosition& position, int group = 0, int groups = 1) const;

private:
    struct File {
        TokenFile file;
        std::int64_t first_document = 0;
    };
    struct Piece {
        const File* file = nullptr;
        std::int64_t document = 0;
        std::int64_t first = 0;  // token of the file
        std::int64_t size = 0;
        std::int64_t document_first = 0;
        std::int64_t document_end = 0;
    };
    [[nodiscard]] Piece piece(std::int64_t item) const;
    [[nodiscard]] Sequence load(std::int64_t item) const;
    [[nodiscard]] std::vector<std::int64_t> next_items(DataPosition& position) const;

    DatasetOptions options_;
    std::vector<File> files_;
    std::vector<std::int64_t> item_ends_;  // [documents]: items of the documents up to and with this one
    std::string identity_;
};

}  // namespace fenwick
