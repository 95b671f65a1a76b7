#include "core/sentencepiece_tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>

#include "core/errors.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/utf8.h"

namespace fenwick {
namespace {

std::string_view view_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void check_status(const sentencepiece::util::Status& status, const std::string& source, const char* action) {
    if (!status.ok())
        throw DataError(fmt::format("{}: SentencePiece cannot {}: {}", source, action, status.ToString()));
}

void check_text(std::string_view text, const std::string& source) {
    const auto bad = find_invalid_utf8(text);
    if (!bad) return;
    std::string hint = "; convert the text to UTF-8, or score its bytes (--tokenizer bytes)";
    if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
        hint = "; it looks like UTF-16: convert it (iconv -f UTF-16 -t UTF-8)";
    }
    throw DataError(fmt::format("{}: byte {}: invalid UTF-8 (0x{:02X}), which SentencePiece cannot take{}", source,
                                *bad, static_cast<unsigned char>(text[static_cast<std::size_t>(*bad)]), hint));
}

std::vector<int> find_byte_ids(const SentencePieceModel& model) {
    std::vector<int> ids;
    if (!model.byte_fallback) return ids;
    ids.assign(256, -1);
    for (std::size_t i = 0; i < model.pieces.size(); ++i) {
        if (model.pieces[i].type != PieceType::kByte) continue;
        // The library has checked that byte pieces are "<0x00>" to "<0xFF>", each once.
        ids[std::stoul(model.pieces[i].text.substr(3, 2), nullptr, 16)] = static_cast<int>(i);
    }
    return ids;
}

}  // namespace

struct SentencePieceTokenizer::Part {
    std::string_view text;
    std::size_t next = 0;         ///< where the next part begins, counted from where this one does
    bool next_has_dummy = false;  ///< the next part's dummy prefix stands for nothing in the text
    bool has_dummy = false;
};

struct SentencePieceTokenizer::Progress {
    UnigramEncoder::Progress unigram;
    int last_id = -1;
};

SentencePieceTokenizer::SentencePieceTokenizer(const std::filesystem::path& model, const SentencePieceLimits& limits)
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()), limits_(limits) {
    const MappedFile file = MappedFile::open(model);
    const auto bytes = view_of(file);
    model_ = parse_sentencepiece_model(bytes, model.string());
    const auto status = processor_->LoadFromSerializedProto(bytes);
    if (!status.ok()) throw DataError(fmt::format("{}: no SentencePiece model: {}", model.string(), status.ToString()));
    rules_ = find_cut_rules(model_);
    if (model_.algorithm == SentencePieceAlgorithm::kUnigram) unigram_ = std::make_unique<UnigramEncoder>(model_);
    byte_ids_ = find_byte_ids(model_);
    Hasher hasher;
    hasher.update(bytes);
    identity_ = "sentencepiece:" + hasher.hex();
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

std::int64_t SentencePieceTokenizer::vocab_size() const {
    return processor_->GetPieceSize();
}

bool SentencePieceTokenizer::is_cut(std::string_view text, std::size_t at) const {
    const char byte = text[at];
    const bool wanted =
        (byte == ' ' && rules_.space) || (byte == '\n' && (rules_.newline_as_space || rules_.newline_as_symbol));
    // A part that would be empty gets no dummy prefix: the last byte is never a cut.
    return wanted && at + 1 < text.size() && visible_before(text, at);
}

SentencePieceTokenizer::Part SentencePieceTokenizer::first_part(std::string_view text) const {
    Part part;
    std::size_t at = text.size();
    if (rules_.any() && text.size() > limits_.part_bytes) {
        const std::size_t last = std::min(text.size(), limits_.whole_bytes + 1);
        for (at = std::max<std::size_t>(limits_.part_bytes, 1); at < last && !is_cut(text, at);) ++at;
        if (at == last) at = text.size();
    }
    part.text = text.substr(0, at);
    part.next = at;
    if (at == text.size()) return part;
    const bool as_symbol = text[at] == '\n' && rules_.newline_as_symbol;
    part.next_has_dummy = as_symbol && model_.add_dummy_prefix;
    // Elsewhere the dummy prefix of the next part is the space that the cut takes away.
    if (!as_symbol && model_.add_dummy_prefix) ++part.next;
    return part;
}

std::string SentencePieceTokenizer::normalize(std::string_view text, const std::string& source) const {
    sentencepiece::ImmutableSentencePieceText pieces;
    check_status(processor_->Encode(text, pieces.mutable_proto()), source, "encode the text");
    std::string normalized;
    normalized.reserve(text.size() * 2);
    for (std::size_t i = 0; i < pieces.pieces_size(); ++i) {
        const auto piece = pieces.pieces(static_cast<int>(i));
        const auto id = static_cast<int>(piece.id());
        if (processor_->IsByte(id)) {
            normalized += static_cast<char>(std::stoul(piece.piece().substr(3, 2), nullptr, 16));
        } else {
            normalized += piece.piece();  // an unknown piece holds its text
        }
    }
    return normalized;
}

std::vector<int> SentencePieceTokenizer::encode_unigram(const Part& part, Progress& progress,
                                                        const std::string& source) const {
    const std::string normalized = normalize(part.text, source);
    std::string_view text = normalized;
    if (part.has_dummy) text.remove_prefix(kSpaceSymbol.size());
    std::vector<int> ids;
    bool after_unknown = progress.last_id == processor_->unk_id();
    for (const auto& token : unigram_->encode(text, progress.unigram)) {
        const bool unknown = token.id == processor_->unk_id();
        if (unknown && !byte_ids_.empty()) {
            for (std::int32_t i = token.begin; i < token.end; ++i) {
                ids.push_back(byte_ids_[static_cast<unsigned char>(text[static_cast<std::size_t>(i)])]);
            }
        } else if (!unknown || !after_unknown) {
            ids.push_back(token.id);  // a run of unknown characters is one token
        }
        after_unknown = unknown;
    }
    return ids;
}

std::vector<int> SentencePieceTokenizer::encode_part(const Part& part, Progress& progress,
                                                     const std::string& source) const {
    if (unigram_) return encode_unigram(part, progress, source);
    std::vector<int> ids;
    check_status(processor_->Encode(part.text, &ids), source, "encode the text");
    if (part.has_dummy) ids.erase(ids.begin());
    // A run of unknown characters is one token, also over a cut.
    if (!ids.empty() && ids.front() == processor_->unk_id() && progress.last_id == ids.front()) ids.erase(ids.begin());
    return ids;
}

void SentencePieceTokenizer::encode(std::string_view text, const std::string& source, const TokenSink& sink) const {
    check_text(text, source);
    Progress progress;
    bool has_dummy = false;
    for (std::size_t at = 0; at < text.size();) {
        Part part = first_part(text.substr(at));
        part.has_dummy = has_dummy;
        if (part.text.size() > limits_.whole_bytes) {
            const std::string why =
                rules_.reason.empty() ? "" : fmt::format(" (the model allows no cut at spaces: {})", rules_.reason);
            throw DataError(
                fmt::format("{}: byte {}: the text has no place to cut within {} bytes, the most that is given to "
                            "SentencePiece at once{}; tokenise it beforehand and give the ids (.npy or .bin)",
                            source, at, limits_.whole_bytes, why));
        }
        const bool whole = at == 0 && part.text.size() == text.size();
        std::vector<int> ids;
        if (whole) {
            check_status(processor_->Encode(text, &ids), source, "encode the text");
        } else {
            ids = encode_part(part, progress, source);
        }
        if (!ids.empty()) {
            progress.last_id = ids.back();
            sink(ids);
        }
        has_dummy = part.next_has_dummy;
        at += part.next;
    }
}

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model) {
    return std::make_unique<SentencePieceTokenizer>(model);
}

}  // namespace fenwick
