// Scratch memory of one rank: taken piece by piece within a layer, given back all at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace fenwick {

/// Grows while a first layer asks for more than there is; from then on every `take` is a pointer move. Pieces stay
/// valid until `reset`. Uninitialised.
class Arena {
public:
    [[nodiscard]] float* take(std::int64_t floats) {
        const std::int64_t size = (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
        if (slabs_.empty() || used_ + size > slabs_.back().size()) {
            slabs_.emplace_back(std::max(size, kSmallestSlab));
            used_ = 0;
        }
        float* at = slabs_.back().data() + used_;
        used_ += size;
        total_ += size;
        return at;
    }
    [[nodiscard]] MatrixView<float> matrix(std::int64_t rows, std::int64_t cols) {
        return {take(rows * cols), rows, cols};
    }

    /// Gives everything back. Several slabs become one that is large enough for all that was taken.
    void reset() {
        if (slabs_.size() > 1) {
            slabs_.clear();
            slabs_.emplace_back(total_);
        }
        used_ = 0;
        total_ = 0;
    }

private:
    static constexpr std::int64_t kAlignFloats = 16;  // 64 bytes
    static constexpr std::int64_t kSmallestSlab = std::int64_t{1} << 16;

    std::vector<Buffer<float>> slabs_;
    std::int64_t used_ = 0;   // of the last slab
    std::int64_t total_ = 0;  // since the last reset
};

}  // namespace fenwick
