// Summaries for tests of the exchange: algebras whose fp32 results depend on the order of combination, and the
// single-rank evaluation along the tree that every world must equal bit by bit.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/fenwick.h"
#include "core/tensor.h"
#include "parallel/node_summaries.h"

namespace fenwick::test {

/// Eight pairs (a, S): combine = (a_r a_l, S_r + a_r S_l).
inline constexpr std::int64_t kScalarFloats = 16;
inline void combine_scalars(const float* left, const float* right, float* out) {
    for (int i = 0; i < kScalarFloats; i += 2) {
        out[i] = right[i] * left[i];
        out[i + 1] = right[i + 1] + right[i] * left[i + 1];
    }
}

/// A [3, 3], S [3, 3]: combine = (A_r A_l, S_r + A_r S_l). Does not commute.
inline constexpr std::int64_t kMatrixFloats = 18;
inline void combine_matrices(const float* left, const float* right, float* out) {
    for (int part = 0; part < 2; ++part) {
        for (int i = 0; i < 3; ++i) {
            for (int j = 0; j < 3; ++j) {
                float sum = part == 0 ? 0.0F : right[9 + 3 * i + j];
                for (int k = 0; k < 3; ++k) sum += right[3 * i + k] * left[9 * part + 3 * k + j];
                out[9 * part + 3 * i + j] = sum;
            }
        }
    }
}

/// Summary of a block: a function of its number alone.
inline std::vector<float> block_values(std::int64_t block, std::int64_t floats) {
    std::mt19937_64 random(0x9e3779b97f4a7c15ULL ^ static_cast<std::uint64_t>(block));
    std::uniform_real_distribution<float> uniform(-0.9F, 0.9F);  // products stay in range, nothing becomes zero
    std::vector<float> values(static_cast<std::size_t>(floats));
    for (float& value : values) value = uniform(random);
    return values;
}

inline Buffer<float> blocks_values(const BlockRun& blocks, std::int64_t floats) {
    Buffer<float> rows(blocks.size() * floats);
    for (std::int64_t block = blocks.first; block < blocks.end; ++block) {
        const std::vector<float> values = block_values(block, floats);
        std::copy(values.begin(), values.end(), rows.data() + (block - blocks.first) * floats);
    }
    return rows;
}

/// A node's summary by recursion over the tree: what every rank's nodes must equal.
inline std::vector<float> node_values(const Node& node, std::int64_t floats, const CombineFunction& combine) {
    if (node.bit == 0) return block_values(node.index, floats);
    const std::vector<float> left = node_values(left_child(node), floats, combine);
    const std::vector<float> right = node_values(right_child(node), floats, combine);
    std::vector<float> out(static_cast<std::size_t>(floats));
    combine(left.data(), right.data(), out.data());
    return out;
}

}  // namespace fenwick::test
