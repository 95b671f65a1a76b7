#include "core/unigram_encoder.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace fenwick {
namespace {

constexpr float kUnknownPenalty = 10.0F;   // below the worst piece
constexpr double kUserDefinedMalus = 0.1;  // fewer, longer user-defined symbols win

std::size_t character_length(std::string_view text, std::size_t at) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const std::size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return std::min(length, text.size() - at);
}

/// The best way to reach one byte position.
struct BestEnd {
    float score = 0.0F;
    std::int32_t id = -1;
    std::int32_t begin = -1;  // -1: no way yet
};

void offer(BestEnd& end, double candidate, std::int32_t id, std::size_t begin) {
    // The comparison is wider than what is kept: that is the library's arithmetic, and it decides ties.
    if (end.begin >= 0 && candidate <= static_cast<double>(end.score)) return;
    end = {static_cast<float>(candidate), id, static_cast<std::int32_t>(begin)};
}

}  // namespace

UnigramEncoder::UnigramEncoder(const SentencePieceModel& model) {
    float lowest = std::numeric_limits<float>::max();
    // The library begins with the smallest positive float, so that user-defined symbols score about 0 in any usual
    // model.
    highest_score_ = std::numeric_limits<float>::min();
    for (std::size_t i = 0; i < model.pieces.size(); ++i) {
        const Piece& piece = model.pieces[i];
        scores_.push_back(piece.score);
        user_defined_.push_back(piece.type == PieceType::kUserDefined);
        if (piece.type == PieceType::kUnknown) unknown_id_ = static_cast<std::int32_t>(i);
        if (piece.type != PieceType::kNormal) continue;
        lowest = std::min(lowest, piece.score);
        highest_score_ = std::max(highest_score_, piece.score);
    }
    unknown_score_ = lowest - kUnknownPenalty;
    build_trie(model.pieces);
}

void UnigramEncoder::build_trie(const std::vector<Piece>& pieces) {
    std::vector<std::pair<std::string_view, std::int32_t>> keys;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const bool matches = pieces[i].type == PieceType::kNormal || pieces[i].type == PieceType::kUserDefined;
        if (matches) keys.emplace_back(pieces[i].text, static_cast<std::int32_t>(i));
    }
    std::sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) {
        return std::lexicographical_compare(
            a.first.begin(), a.first.end(), b.first.begin(), b.first.end(),
            [](char x, char y) { return static_cast<unsigned char>(x) < static_cast<unsigned char>(y); });
    });
    // Breadth first, so that the children of a node lie side by side. A range holds the keys that share a node's bytes.
    struct Range {
        std::size_t node, begin, end, depth;
    };
    nodes_.assign(1, Node{});
    std::vector<Range> ranges{{0, 0, keys.size(), 0}};
    for (std::size_t r = 0; r < ranges.size(); ++r) {
        const Range range = ranges[r];
        std::size_t k = range.begin;
        if (k < range.end && keys[k].first.size() == range.depth) nodes_[range.node].id = keys[k++].second;
        nodes_[range.node].first_child = static_cast<std::int32_t>(nodes_.size());
        while (k < range.end) {
            const char byte = keys[k].first[range.depth];
            const std::size_t first = k;
            while (k < range.end && keys[k].first[range.depth] == byte) ++k;
            ranges.push_back({nodes_.size(), first, k, range.depth + 1});
            nodes_.push_back({0, 0, -1, static_cast<unsigned char>(byte)});
            ++nodes_[range.node].children;
        }
    }
}

const UnigramEncoder::Node* UnigramEncoder::child(const Node& node, unsigned char byte) const {
    const auto begin = nodes_.begin() + node.first_child;
    const auto end = begin + node.children;
    const auto found = std::lower_bound(begin, end, byte, [](const Node& a, unsigned char b) { return a.byte < b; });
    return found != end && found->byte == byte ? &*found : nullptr;
}

double UnigramEncoder::score(std::int32_t id, std::size_t bytes) const {
    const auto i = static_cast<std::size_t>(id);
    if (!user_defined_[i]) return static_cast<double>(scores_[i]);
    return static_cast<double>(static_cast<float>(bytes) * highest_score_) - kUserDefinedMalus;
}

std::vector<UnigramEncoder::Token> UnigramEncoder::encode(std::string_view normalized, Progress& progress) const {
    std::vector<BestEnd> ends(normalized.size() + 1);
    ends[0].score = progress.path_score;
    for (std::size_t begin = 0; begin < normalized.size();) {
        const std::size_t character = character_length(normalized, begin);
        const float so_far = ends[begin].score;
        bool covered = false;
        const Node* node = nodes_.data();
        for (std::size_t at = begin; at < normalized.size();) {
            node = child(*node, static_cast<unsigned char>(normalized[at++]));
            if (node == nullptr) break;
            if (node->id < 0) continue;
            offer(ends[at], score(node->id, at - begin) + static_cast<double>(so_far), node->id, begin);
            covered = covered || at - begin == character;
        }
        if (!covered) {
            const float candidate = unknown_score_ + so_far;
            offer(ends[begin + character], static_cast<double>(candidate), unknown_id_, begin);
        }
        begin += character;
    }
    progress.path_score = ends.back().score;

    std::vector<Token> tokens;
    for (auto end = static_cast<std::int32_t>(normalized.size()); end > 0;) {
        const BestEnd& best = ends[static_cast<std::size_t>(end)];
        tokens.push_back({best.id, best.begin, end});
        end = best.begin;
    }
    std::reverse(tokens.begin(), tokens.end());
    return tokens;
}

}  // namespace fenwick
