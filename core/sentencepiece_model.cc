#include "core/sentencepiece_model.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <optional>

#include "core/errors.h"

namespace fenwick {
namespace {

/// Walks the fields of one protocol-buffer message.
class MessageReader {
public:
    MessageReader(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

    int field = 0;
    std::uint64_t number = 0;  ///< value of a varint or fixed field
    std::string_view text;     ///< value of a length-delimited field

    /// Moves to the next field; false at the end.
    bool next() {
        if (bytes_.empty()) return false;
        const std::uint64_t tag = varint();
        field = static_cast<int>(tag >> 3U);
        text = {};
        number = 0;
        switch (tag & 7U) {
            case 0:
                number = varint();
                break;
            case 1:
                number = fixed(8);
                break;
            case 2:
                text = take(varint());
                break;
            case 5:
                number = fixed(4);
                break;
            default:
                fail();
        }
        return true;
    }

private:
    [[noreturn]] void fail() const {
        throw DataError(
            fmt::format("{}: no SentencePiece model: its protocol-buffer fields are damaged or cut", source_));
    }
    std::string_view take(std::uint64_t n) {
        if (n > bytes_.size()) fail();
        const auto taken = bytes_.substr(0, n);
        bytes_.remove_prefix(n);
        return taken;
    }
    std::uint64_t fixed(std::size_t n) {
        std::uint64_t value = 0;
        std::memcpy(&value, take(n).data(), n);
        return value;
    }
    std::uint64_t varint() {
        std::uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const auto byte = static_cast<unsigned char>(take(1)[0]);
            value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
            if (byte < 0x80) return value;
        }
        fail();
    }

    std::string_view bytes_;
    const std::string& source_;
};

static_assert(std::endian::native == std::endian::little, "model files are read as little-endian memory");

Piece parse_piece(std::string_view bytes, const std::string& source) {
    Piece piece;
    MessageReader reader(bytes, source);
    while (reader.next()) {
        if (reader.field == 1) piece.text = reader.text;
        if (reader.field == 2) piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(reader.number));
        if (reader.field == 3) piece.type = static_cast<PieceType>(reader.number);
    }
    return piece;
}

void parse_trainer_spec(std::string_view bytes, const std::string& source, SentencePieceModel& model) {
    MessageReader reader(bytes, source);
    while (reader.next()) {
        if (reader.field == 3) model.algorithm = static_cast<SentencePieceAlgorithm>(reader.number);
        if (reader.field == 24) model.whitespace_as_suffix = reader.number != 0;
        if (reader.field == 35) model.byte_fallback = reader.number != 0;
    }
}

void parse_normalizer_spec(std::string_view bytes, const std::string& source, SentencePieceModel& model) {
    MessageReader reader(bytes, source);
    while (reader.next()) {
        if (reader.field == 2) model.charsmap = reader.text;
        if (reader.field == 3) model.add_dummy_prefix = reader.number != 0;
        if (reader.field == 4) model.remove_extra_whitespaces = reader.number != 0;
        if (reader.field == 5) model.escape_whitespaces = reader.number != 0;
    }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source) {
    SentencePieceModel model;
    MessageReader reader(bytes, source);
    while (reader.next()) {
        if (reader.field == 1) model.pieces.push_back(parse_piece(reader.text, source));
        if (reader.field == 2) parse_trainer_spec(reader.text, source, model);
        if (reader.field == 3) parse_normalizer_spec(reader.text, source, model);
    }
    return model;
}

}  // namespace fenwick
