// Cuts a caller's workspace into 64-byte aligned parts.
#pragma once

#include <cstdint>

namespace fenwick::cpu {

/// With `memory` null it only counts: `used` is then the workspace that the same calls need.
struct Carver {
    static constexpr std::int64_t kAlignFloats = 16;

    float* memory;
    std::int64_t used = 0;

    float* take(std::int64_t floats) {
        float* at = memory == nullptr ? nullptr : memory + used;
        used += (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
        return at;
    }
};

}  // namespace fenwick::cpu
