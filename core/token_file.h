// Token files: the token ids of many documents, mapped, for training. `fenwick tokenize` writes them.
//
// Format "token file, version 1", little-endian. Offsets are bytes from the start of the file; all numbers are 64 bits
// and signed unless stated.
//
//   0    8   magic "FWTOKENS"
//   8    4   version, unsigned: 1
//   12   4   id_bytes, unsigned: 1, 2 or 4, the width of an unsigned id
//   16   8   vocab_size: ids are in [0, vocab_size)
//   24   8   documents
//   32   8   tokens of all documents
//   40   8   text_bytes of the text that the tokens stand for; -1: not known
//   48   8   mask_offset; 0: no mask
//   56   8   table_offset
//   64   8   file_bytes: the size of the file
//   72   64  tokenizer: identity (core/tokenizer.h), padded with zero bytes; empty for ids that came ready
//   136  24  zero
//   160  32  hash: XXH3, 128 bits, in hexadecimal, of the bytes from 192 to the end, then of the bytes [0, 160)
//   192      ids, tokens * id_bytes bytes; zero bytes up to a multiple of 8
//            mask, where there is one: bit t % 8 of byte t / 8 says whether token t is a target; zero up to a multiple
//            of 8 table [documents + 1]: document i is tokens [table[i], table[i + 1]); table[0] = 0, table[documents]
//            = tokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/files.h"
#include "core/hash.h"

namespace fenwick {

/// A token file for reading. May be used from several threads at once.
class TokenFile {
public:
    /// Maps the file and checks header and table (not the ids: `read` checks those that it reads, `verify` the hash).
    /// Throws DataError naming file, field, expected and found; UnavailableError.
    [[nodiscard]] static TokenFile open(const std::filesystem::path& path);

    [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
    [[nodiscard]] int id_bytes() const { return id_bytes_; }
    [[nodiscard]] std::int64_t vocab_size() const { return vocab_size_; }
    [[nodiscard]] std::int64_t documents() const { return documents_; }
    [[nodiscard]] std::int64_t tokens() const { return tokens_; }
    [[nodiscard]] std::int64_t text_bytes() const { return text_bytes_; }  ///< -1: not known
    [[nodiscard]] const std::string& tokenizer() const { return tokenizer_; }
    [[nodiscard]] const std::string& hash() const { return hash_; }  ///< as the header has it
    [[nodiscard]] bool has_mask() const { return mask_ != nullptr; }

    /// MappedFile's; `read` calls it. Before `first_token` and `is_target`, which read the map too, the caller does.
    void check_not_cut() const { file_.check_not_cut(); }

    /// The number, in this file, of the first token of document `index`, in [0, documents()].
    [[nodiscard]] std::int64_t first_token(std::int64_t index) const { return table_[index]; }

    /// Tokens [first, first + out.size()) of the file. Throws DataError naming file and position for an id outside the
    /// vocabulary, InternalError for a range that leaves the file.
    void read(std::int64_t first, std::span<std::int32_t> out) const;
    /// Whether a loss is taken where token `token` is to be predicted: its mask bit, or true without a mask.
    [[nodiscard]] bool is_target(std::int64_t token) const {
        return mask_ == nullptr || ((mask_[token / 8] >> (token % 8)) & 1U) != 0;
    }

    /// Reads the whole file. Throws DataError when it does not have the hash that its header says.
    void verify() const;

private:
    explicit TokenFile(MappedFile file) : file_(std::move(file)) {}

    MappedFile file_;
    int id_bytes_ = 0;
    std::int64_t vocab_size_ = 0;
    std::int64_t documents_ = 0;
    std::int64_t tokens_ = 0;
    std::int64_t text_bytes_ = -1;
    std::string tokenizer_;
    std::string hash_;
    const std::byte* ids_ = nullptr;       // [tokens * id_bytes]
    const std::uint8_t* mask_ = nullptr;   // [ceil(tokens / 8)] or null
    const std::int64_t* table_ = nullptr;  // [documents + 1]
};

struct TokenFileOptions {
    std::int64_t vocab_size = 0;
    std::string tokenizer;  ///< identity, at most 64 bytes; empty for ready ids
    bool with_mask = false;
};

/// Writes a token file document by document; it appears whole, by `commit`, or not at all. Memory: 8 bytes a document
/// and, with a mask, a bit a token.
class TokenFileWriter {
public:
    /// Throws UsageError for a vocabulary outside [1, 2^31), UnavailableError when the file cannot be made.
    TokenFileWriter(const std::filesystem::path& path, TokenFileOptions options);

    /// More tokens of the current document. `targets` [ids.size()]: the mask, with_mask only. Throws DataError for an
    /// id outside the vocabulary, UnavailableError for a full disk.
    void append(std::span<const std::int32_t> ids, const std::vector<bool>& targets = {});
    /// Ends the current document (which may be empty). `text_bytes` of its text; -1: not known.
    void end_document(std::int64_t text_bytes = -1);
    [[nodiscard]] std::int64_t documents() const { return static_cast<std::int64_t>(table_.size()) - 1; }
    [[nodiscard]] std::int64_t tokens() const { return tokens_; }

    /// Call once, last, after `end_document`. Returns the hash.
    std::string commit();

private:
    void write(std::span<const std::byte> bytes);
    void pad();

    std::filesystem::path path_;
    TokenFileOptions options_;
    int id_bytes_ = 0;
    AtomicFile file_;
    Hasher hasher_;
    std::int64_t size_ = 0;
    std::int64_t tokens_ = 0;
    std::int64_t text_bytes_ = 0;
    std::vector<std::int64_t> table_{0};
    std::vector<std::uint8_t> mask_;
    std::vector<std::byte> narrow_;
};

}  // namespace fenwick
