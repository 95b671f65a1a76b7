// The unigram segmentation of SentencePiece, continued over the parts of a long text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/sentencepiece_model.h"

namespace fenwick {

/// Finds the best path (Kudo, arXiv 1804.10959) through normalised text as the library does for a whole text. The
/// library adds up a path's score in fp32 from the start of the text on, so late in a long text the rounding of a large
/// sum decides between paths: a part encoded alone can differ from the same part within the whole. This class takes the
/// sum along.
class UnigramEncoder {
public:
    /// The sum where the next part begins; 0 at the start of a text.
    struct Progress {
        float path_score = 0.0F;
    };
    struct Token {
        std::int32_t id;     ///< the unknown piece's id for a character that no piece covers
        std::int32_t begin;  ///< bytes [begin, end) of the part
        std::int32_t end;
    };

    explicit UnigramEncoder(const SentencePieceModel& model);

    /// Tokens of one part of the normalised text, in order. The parts must be cut by the rules of `find_cut_rules`, and
    /// be shorter than 2^31 bytes.
    [[nodiscard]] std::vector<Token> encode(std::string_view normalized, Progress& progress) const;

private:
    struct Node {
        std::int32_t first_child = 0;  ///< children lie side by side, in the order of their bytes
        std::int32_t children = 0;
        std::int32_t id = -1;  ///< of the piece that ends here
        unsigned char byte = 0;
    };
    void build_trie(const std::vector<Piece>& pieces);
    [[nodiscard]] const Node* child(const Node& node, unsigned char byte) const;
    [[nodiscard]] double score(std::int32_t id, std::size_t bytes) const;

    std::vector<Node> nodes_;
    std::vector<float> scores_;
    std::vector<bool> user_defined_;
    std::int32_t unknown_id_ = 0;
    float unknown_score_ = 0.0F;
    float highest_score_ = 0.0F;
};

}  // namespace fenwick
