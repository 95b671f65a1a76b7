// What a SentencePiece model file says beyond the library's interface: piece types, normaliser settings, and where a
// text may be cut without changing its ids. Format: sentencepiece_model.proto of SentencePiece (protocol buffers,
// proto2).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fenwick {

enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
enum class SentencePieceAlgorithm { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct Piece {
    std::string text;
    float score = 0.0F;
    PieceType type = PieceType::kNormal;
};

struct SentencePieceModel {
    std::vector<Piece> pieces;
    SentencePieceAlgorithm algorithm = SentencePieceAlgorithm::kUnigram;
    bool byte_fallback = false;
    bool whitespace_as_suffix = false;
    bool add_dummy_prefix = true;
    bool remove_extra_whitespaces = true;
    bool escape_whitespaces = true;
    std::string charsmap;  ///< normalisation rules: size of a double-array trie, the trie, NUL-ended replacements
};

/// U+2581, which stands for a space in pieces and normalised text.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

/// Reads a serialised ModelProto. Throws DataError naming `source` when the bytes are cut or no protocol buffer.
[[nodiscard]] SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source);

/// Where a text may be cut so that both parts, encoded alone, give the ids of the whole. Every cut lies before a byte W
/// (a space or a newline) that follows a visible character (`visible_before`). It is exact because the normaliser
/// treats W by itself, so the parts normalise alone as they do together, and because no piece of the model reaches over
/// the cut, so that neither BPE merges nor Viterbi paths couple the parts.
struct CutRules {
    bool space = false;              ///< W = ' ', which becomes U+2581
    bool newline_as_space = false;   ///< W = '\n', which the normaliser makes a space
    bool newline_as_symbol = false;  ///< W = '\n', which stays, and which no longer piece holds
    std::string reason;              ///< why `space` is not possible; empty when it is

    [[nodiscard]] bool any() const { return space || newline_as_space || newline_as_symbol; }
};

[[nodiscard]] CutRules find_cut_rules(const SentencePieceModel& model);

/// Whether the character that ends at `end` (> 0) of valid UTF-8 is visible ASCII or lies in U+3001..U+D7FF: never a
/// space nor U+2581.
[[nodiscard]] bool visible_before(std::string_view text, std::size_t end);

}  // namespace fenwick
