// Strict UTF-8 (RFC 3629).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fenwick {

/// Byte offset of the first sequence that is no UTF-8 (stray, overlong, surrogate, above U+10FFFF, or cut off at the
/// end); nothing when all of `text` is valid.
[[nodiscard]] std::optional<std::int64_t> find_invalid_utf8(std::string_view text);

}  // namespace fenwick
