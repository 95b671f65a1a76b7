#include "core/utf8.h"

#include <cstring>

namespace fenwick {
namespace {

/// Length of the valid sequence at `p`, of which `left` >= 1 bytes are there; 0 when there is none.
int sequence_length(const unsigned char* p, std::size_t left) {
    const unsigned char lead = p[0];
    if (lead < 0x80) return 1;
    const int length = lead >= 0xC2 && lead <= 0xDF   ? 2
                       : (lead & 0xF0) == 0xE0        ? 3
                       : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                      : 0;
    if (length == 0 || left < static_cast<std::size_t>(length)) return 0;
    // The second byte's range shuts out overlong forms, surrogates and code points above U+10FFFF.
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high) return 0;
    for (int i = 2; i < length; ++i) {
        if ((p[i] & 0xC0) != 0x80) return 0;
    }
    return length;
}

}  // namespace

std::optional<std::int64_t> find_invalid_utf8(std::string_view text) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    std::size_t i = 0;
    while (i < text.size()) {
        if (text.size() - i >= sizeof(std::uint64_t)) {
            std::uint64_t word = 0;
            std::memcpy(&word, bytes + i, sizeof(word));
            if ((word & 0x8080808080808080U) == 0) {
                i += sizeof(word);
                continue;
            }
        }
        const int length = sequence_length(bytes + i, text.size() - i);
        if (length == 0) return static_cast<std::int64_t>(i);
        i += static_cast<std::size_t>(length);
    }
    return std::nullopt;
}

}  // namespace fenwick
