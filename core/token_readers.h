// Tokens that lie in files or memory, as TokenReaders: ready ids (.npy, .bin), raw bytes, and text tokenised into a
// file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "core/documents.h"
#include "core/files.h"
#include "core/npy.h"

namespace fenwick {

/// How a mapped integer array is read: `name` goes into messages, `text_bytes` is -1 for ready ids.
struct TokenArrayOptions {
    std::string name;
    std::int64_t vocab_size = 0;
    std::int64_t text_bytes = -1;
    bool check_ids = true;  ///< look at every id now, in bounded memory; `read` checks what it reads in any case
};

/// Integers of `layout` in `file` (a .npy header also describes a raw file). Throws DataError naming file, position and
/// value for an id outside [0, vocab_size).
[[nodiscard]] std::unique_ptr<TokenReader> open_token_array(MappedFile file, const NpyHeader& layout,
                                                            const TokenArrayOptions& options);

/// The layout of a header-less little-endian file. Throws DataError when its size is no multiple of the width.
[[nodiscard]] NpyHeader raw_token_layout(const MappedFile& file, int element_bytes, bool is_signed);

/// One token for a byte, straight from the map; nothing is read before `read`.
[[nodiscard]] std::unique_ptr<TokenReader> open_byte_tokens(MappedFile file, std::int64_t vocab_size);
/// The same over a text in memory; `name` goes into messages.
[[nodiscard]] std::unique_ptr<TokenReader> make_byte_tokens(std::string text, std::string name,
                                                            std::int64_t vocab_size);

/// `id`, then the tokens of `rest`; text_bytes stays.
[[nodiscard]] std::unique_ptr<TokenReader> prepend_token(std::int32_t id, std::unique_ptr<TokenReader> rest);

/// Streams ids into a new int32 file of `folder` (the system's temporary folder when empty). The file is removed when
/// the writer or the reader that `finish` gives goes away; its name is unlike that of any other process.
class TokenSpool {
public:
    /// `name` goes into messages. Throws UnavailableError.
    TokenSpool(const std::filesystem::path& folder, std::string name, std::int64_t vocab_size);
    TokenSpool(const TokenSpool&) = delete;
    TokenSpool& operator=(const TokenSpool&) = delete;
    ~TokenSpool();

    /// Throws DataError for an id outside the vocabulary, UnavailableError for a full disk.
    void append(std::span<const std::int32_t> ids);
    /// Call once, last. `text_bytes` as in TokenReader.
    [[nodiscard]] std::unique_ptr<TokenReader> finish(std::int64_t text_bytes);

private:
    std::string name_;
    std::int64_t vocab_size_;
    std::int64_t count_ = 0;
    AppendFile file_;
};

}  // namespace fenwick
