// Finds where a SentencePiece model lets a text be cut: `find_cut_rules` of core/sentencepiece_model.h.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "core/sentencepiece_model.h"

namespace fenwick {
namespace {

/// How far a byte string is inside a character that `visible_before` accepts.
enum class Ending : unsigned char { kOther, kVisible, kNeedOne, kNeedTwo, kLeadE3, kLeadE380 };
constexpr std::size_t kEndings = 6;

Ending next_ending(Ending ending, unsigned char byte) {
    if (byte >= 0x21 && byte <= 0x7E) return Ending::kVisible;
    if (byte == 0xE3) return Ending::kLeadE3;
    if (byte >= 0xE4 && byte <= 0xED) return Ending::kNeedTwo;
    if ((byte & 0xC0U) != 0x80) return Ending::kOther;
    switch (ending) {
        case Ending::kNeedTwo:
            return Ending::kNeedOne;
        case Ending::kNeedOne:
            return Ending::kVisible;
        case Ending::kLeadE3:
            return byte == 0x80 ? Ending::kLeadE380 : Ending::kNeedOne;
        case Ending::kLeadE380:
            return byte == 0x80 ? Ending::kOther : Ending::kVisible;  // E3 80 80: ideographic space
        case Ending::kVisible:
        case Ending::kOther:
            break;
    }
    return Ending::kOther;
}

/// What the normalisation rules do around spaces and newlines.
struct CharsmapFacts {
    bool readable = true;
    bool space_alone = true;              ///< no rule's key holds ' ', or one: ' ' alone, to ' '
    bool newline_in_rules = false;        ///< some rule's key holds '\n'
    bool newline_alone_to_space = false;  ///< exactly one does: '\n' alone, to ' '
    bool visible_stays =
        true;  ///< a rule whose key ends in a visible character gives text that does not end in a space
};

/// Walks the double-array trie (darts-clone's layout: bit 31 and 0..7 label, 8 has a value, 9.. offset). The trie
/// shares equal tails, so each (unit, ending) is seen once however many keys pass through it.
class CharsmapWalk {
public:
    explicit CharsmapWalk(std::string_view charsmap) {
        std::uint32_t trie_bytes = 0;
        if (charsmap.size() <= sizeof(trie_bytes)) return;
        std::memcpy(&trie_bytes, charsmap.data(), sizeof(trie_bytes));
        if (trie_bytes >= charsmap.size() - sizeof(trie_bytes) || trie_bytes < sizeof(std::uint32_t)) return;
        units_.resize(trie_bytes / sizeof(std::uint32_t));
        std::memcpy(units_.data(), charsmap.data() + sizeof(trie_bytes), units_.size() * sizeof(std::uint32_t));
        replacements_ = charsmap.substr(sizeof(trie_bytes) + trie_bytes);
    }

    CharsmapFacts run() {
        facts_.readable = !units_.empty();
        if (!facts_.readable) return facts_;
        seen_.assign(units_.size() * kEndings, false);
        std::vector<Node> pending{{0, Ending::kOther}};
        while (!pending.empty()) {
            const Node node = pending.back();
            pending.pop_back();
            for (const Node& child : visit(node)) {
                const std::size_t mark = child.unit * kEndings + static_cast<std::size_t>(child.ending);
                if (seen_[mark]) continue;
                seen_[mark] = true;
                pending.push_back(child);
            }
        }
        return facts_;
    }

private:
    struct Node {
        std::size_t unit;
        Ending ending;
    };

    [[nodiscard]] std::size_t base(std::size_t unit) const {
        const std::uint32_t u = units_[unit];
        return unit ^ (static_cast<std::size_t>(u >> 10U) << ((u & (1U << 9U)) >> 6U));
    }
    [[nodiscard]] bool has_child(std::size_t unit, unsigned byte) const {
        const std::size_t child = base(unit) ^ byte;
        return child < units_.size() && (units_[child] & 0x800000FFU) == byte;
    }
    /// The replacement text of the key that ends at `unit`; nothing when none does.
    [[nodiscard]] std::optional<std::string_view> value(std::size_t unit) const {
        if ((units_[unit] & 0x100U) == 0 || base(unit) >= units_.size()) return std::nullopt;
        const std::size_t at = units_[base(unit)] & 0x7FFFFFFFU;
        const std::size_t end = replacements_.find('\0', at);
        if (end == std::string_view::npos) return std::nullopt;
        return replacements_.substr(at, end - at);
    }
    [[nodiscard]] bool is_alone_to_space(std::size_t unit) const {
        for (unsigned byte = 1; byte < 256; ++byte) {
            if (has_child(unit, byte)) return false;
        }
        return value(unit) == " ";
    }
    void note_key_byte(std::size_t parent, std::size_t unit, unsigned byte) {
        const bool alone = parent == 0 && is_alone_to_space(unit);
        if (byte == ' ') facts_.space_alone = facts_.space_alone && alone;
        if (byte == '\n') {
            facts_.newline_alone_to_space = alone && !facts_.newline_in_rules;
            facts_.newline_in_rules = true;
        }
    }
    std::vector<Node> visit(const Node& node) {
        if (const auto text = value(node.unit); text && node.ending == Ending::kVisible) {
            if (text->empty() || text->ends_with(' ') || text->ends_with(kSpaceSymbol)) facts_.visible_stays = false;
        }
        std::vector<Node> children;
        for (unsigned byte = 1; byte < 256; ++byte) {
            if (!has_child(node.unit, byte)) continue;
            const std::size_t unit = base(node.unit) ^ byte;
            if (byte == ' ' || byte == '\n') note_key_byte(node.unit, unit, byte);
            children.push_back({unit, next_ending(node.ending, static_cast<unsigned char>(byte))});
        }
        return children;
    }

    CharsmapFacts facts_;
    std::vector<std::uint32_t> units_;
    std::string_view replacements_;
    std::vector<bool> seen_;
};

/// What the pieces say about cuts.
struct PieceFacts {
    bool crosses_space = false;    ///< a piece holds U+2581 after another character
    bool unused = false;           ///< a piece is switched off: BPE then splits by what it has seen anywhere
    bool defined_space = false;    ///< a user-defined symbol holds ' '
    bool defined_newline = false;  ///< a user-defined symbol holds '\n'
    bool longer_newline = false;   ///< a piece of more than one byte holds '\n'
    bool space_symbol = false;     ///< U+2581 is a piece by itself
};

bool crosses_space(std::string_view piece) {
    std::string_view rest = piece;
    while (rest.starts_with(kSpaceSymbol)) rest.remove_prefix(kSpaceSymbol.size());
    return rest.find(kSpaceSymbol) != std::string_view::npos;
}

PieceFacts look_at_pieces(const SentencePieceModel& model) {
    PieceFacts facts;
    for (const Piece& piece : model.pieces) {
        const bool defined = piece.type == PieceType::kUserDefined;
        if (piece.type == PieceType::kUnused) facts.unused = true;
        if (piece.type != PieceType::kNormal && !defined) continue;
        const bool newline = piece.text.find('\n') != std::string::npos;
        facts.crosses_space = facts.crosses_space || crosses_space(piece.text);
        facts.defined_space = facts.defined_space || (defined && piece.text.find(' ') != std::string::npos);
        facts.defined_newline = facts.defined_newline || (defined && newline);
        facts.longer_newline = facts.longer_newline || (newline && piece.text.size() > 1);
        facts.space_symbol = facts.space_symbol || piece.text == kSpaceSymbol;
    }
    return facts;
}

}  // namespace

CutRules find_cut_rules(const SentencePieceModel& model) {
    CutRules rules;
    const PieceFacts pieces = look_at_pieces(model);
    const CharsmapFacts charsmap = model.charsmap.empty() ? CharsmapFacts{} : CharsmapWalk(model.charsmap).run();
    if (!model.escape_whitespaces) {
        rules.reason = "it keeps spaces as they are";
    } else if (model.whitespace_as_suffix) {
        rules.reason = "it writes spaces after words";
    } else if (pieces.unused) {
        rules.reason = "it has pieces that are switched off";
    } else if (!charsmap.readable || !charsmap.visible_stays) {
        rules.reason = "its normalisation rules make spaces of other characters";
    }
    if (!rules.reason.empty()) return rules;

    // Without a dummy prefix a part that begins with a space would lose it to remove_extra_whitespaces.
    const bool space_kept = model.add_dummy_prefix || !model.remove_extra_whitespaces;
    const bool words_end = space_kept && !pieces.crosses_space;
    rules.space = words_end && charsmap.space_alone && !pieces.defined_space;
    rules.newline_as_space = words_end && charsmap.newline_alone_to_space && !pieces.defined_newline;
    // The newline is a token boundary on both sides; the dummy prefix before it is one piece, taken away again.
    rules.newline_as_symbol =
        !charsmap.newline_in_rules && !pieces.longer_newline && (!model.add_dummy_prefix || pieces.space_symbol) &&
        (model.algorithm == SentencePieceAlgorithm::kBpe || model.algorithm == SentencePieceAlgorithm::kUnigram);
    if (!rules.space) {
        rules.reason = pieces.crosses_space ? "it has pieces that go on over a space"
                                            : "its rules join spaces with other characters";
    }
    return rules;
}

bool visible_before(std::string_view text, std::size_t end) {
    Ending ending = Ending::kOther;
    for (std::size_t i = end - std::min<std::size_t>(end, 3); i < end; ++i) {
        ending = next_ending(ending, static_cast<unsigned char>(text[i]));
    }
    return ending == Ending::kVisible;
}

}  // namespace fenwick
