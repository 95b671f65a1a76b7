// SentencePiece models: the library's ids for the whole text, in bounded memory where the model allows it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/sentencepiece_model.h"
#include "core/tokenizer.h"
#include "core/unigram_encoder.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace fenwick {

/// The library needs about 150 bytes of memory for a byte of text and takes more time per byte the longer a BPE text
/// is. So a text is given to it in parts, cut where that provably changes nothing (core/sentencepiece_model.h).
struct SentencePieceLimits {
    std::size_t part_bytes = std::size_t{256} << 10;  ///< a text is cut at the first place that is this far or farther
    std::size_t whole_bytes = std::size_t{16} << 20;  ///< longest part that is given to the library
};

/// Policy for text: it must be valid UTF-8 (no replacement characters by stealth). NUL, CR LF and byte order marks go
/// to the library as they are; its normaliser rules decide. A text that has no place to cut within `whole_bytes` is
/// refused.
class SentencePieceTokenizer final : public Tokenizer {
public:
    /// Throws DataError when `model` is absent or no SentencePiece model.
    explicit SentencePieceTokenizer(const std::filesystem::path& model, const SentencePieceLimits& limits = {});
    SentencePieceTokenizer(const SentencePieceTokenizer&) = delete;
    SentencePieceTokenizer& operator=(const SentencePieceTokenizer&) = delete;
    ~SentencePieceTokenizer() override;

    [[nodiscard]] TokenizerKind kind() const override { return TokenizerKind::kSentencePiece; }
    [[nodiscard]] std::int64_t vocab_size() const override;
    [[nodiscard]] std::string identity() const override { return identity_; }
    void encode(std::string_view text, const std::string& source, const TokenSink& sink) const override;

    [[nodiscard]] const CutRules& cut_rules() const { return rules_; }

private:
    struct Part;
    struct Progress;
    [[nodiscard]] Part first_part(std::string_view text) const;
    [[nodiscard]] bool is_cut(std::string_view text, std::size_t at) const;
    [[nodiscard]] std::vector<int> encode_part(const Part& part, Progress& progress, const std::string& source) const;
    [[nodiscard]] std::vector<int> encode_unigram(const Part& part, Progress& progress,
                                                  const std::string& source) const;
    [[nodiscard]] std::string normalize(std::string_view text, const std::string& source) const;

    std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
    SentencePieceLimits limits_;
    SentencePieceModel model_;
    CutRules rules_;
    std::unique_ptr<UnigramEncoder> unigram_;  ///< only for unigram models
    std::vector<int> byte_ids_;                ///< of the 256 byte pieces; empty without byte fallback
    std::string identity_;
};

}  // namespace fenwick
