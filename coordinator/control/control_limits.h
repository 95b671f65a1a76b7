// Sizes of the control plane's frames, and times of its connections.
#pragma once

#include <chrono>
#include <cstdint>

namespace fenwick {

/// Most bytes of a frame, once a rank is welcome. Tokens, losses and states come in smaller pieces.
inline constexpr std::int64_t kControlFrameBytes = std::int64_t{8} << 20;
/// Before that: a Hello is short.
inline constexpr std::int64_t kHelloFrameBytes = std::int64_t{1} << 16;
inline constexpr std::chrono::seconds kHelloWithin{10};
/// Pieces of states, and of tokens: ids of four bytes.
inline constexpr std::int64_t kStatePieceBytes = std::int64_t{1} << 20;
inline constexpr std::int64_t kTokensPiece = std::int64_t{1} << 18;

}  // namespace fenwick
