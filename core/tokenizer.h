// From text to token ids: raw bytes, or a SentencePiece model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace fenwick {

enum class TokenizerKind { kBytes, kSentencePiece };

/// Takes the next token ids of a text; called any number of times, in order.
using TokenSink = std::function<void(std::span<const std::int32_t>)>;

class Tokenizer {
public:
    virtual ~Tokenizer() = default;
    [[nodiscard]] virtual TokenizerKind kind() const = 0;
    [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
    /// Identifies the tokenizer in hashes and reports: "bytes", or "sentencepiece:" and the model file's hash.
    [[nodiscard]] virtual std::string identity() const = 0;
    /// Gives the ids of the whole `text` to `sink`, piece by piece. `source` names the text in messages. Throws
    /// DataError for a text that the tokenizer cannot take (SentencePiece: invalid UTF-8, naming the byte).
    virtual void encode(std::string_view text, const std::string& source, const TokenSink& sink) const = 0;
};

/// Ids are the bytes 0..255: nothing is dropped, added or changed (byte order marks, CR LF and NUL included).
[[nodiscard]] std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Ids equal those of the SentencePiece library for the whole text, whatever its length; see
/// core/sentencepiece_tokenizer.h. Throws DataError when `model` is no SentencePiece model.
[[nodiscard]] std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model);

/// The tokenizer that a user's `choice` means: "auto" (`tokenizer.model` in `model_folder` when there is one, else
/// bytes), "bytes", or the path of a SentencePiece model. Throws ConfigError when the model's vocabulary is smaller
/// than the tokenizer's (bytes need 256), DataError when the file is no SentencePiece model.
[[nodiscard]] std::unique_ptr<Tokenizer> resolve_tokenizer(const std::string& choice,
                                                           const std::filesystem::path& model_folder,
                                                           std::int64_t vocab_size);

}  // namespace fenwick
