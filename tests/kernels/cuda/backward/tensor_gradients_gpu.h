// What the gradients on the matrix units are checked with, the same for every algebra.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/backward/workspace.h"
#include "tests/kernels/cuda/backward/mixer_gradients_gpu.h"

namespace fenwick::test {

struct TensorGradients {
    TransitionAlgebra algebra;
    GradientBound allowed;

    [[nodiscard]] MixerShape shape(std::int64_t heads, std::int64_t key_heads, std::int64_t key_dim,
                                   std::int64_t value_dim, std::int64_t levels) const {
        return {algebra, heads, key_heads, key_dim, value_dim, levels};
    }
    /// Against the double reference, in shards that start at the blocks `cuts`.
    void check(const MixerCase& c, const std::vector<std::int64_t>& cuts = {0}) const {
        check_gradients(c, allowed, {Operand::kBf16}, cuts);
    }

    void check_short_documents() const {
        for (const std::int64_t key_dim : {64, 128}) {
            for (const std::int64_t levels : {0, 15, 5}) {
                for (const std::int64_t tokens : {1, 63, 64, 65, 300}) {
                    check(bf16_case(shape(2, 1, key_dim, 64, levels), tokens, 1));
                }
            }
        }
    }
    void check_head_shapes(std::int64_t tokens) const {
        for (const std::int64_t key_dim : {64, 128}) {
            for (const std::int64_t value_dim : {8, 64, 72, 128, 256}) {
                for (const std::int64_t levels : {9, 0}) {
                    check(bf16_case(shape(4, 2, key_dim, value_dim, levels), tokens, 2));
                }
            }
        }
    }
    void check_blocks_and_shards() const {
        for (const std::int64_t levels : {0, 15}) {
            const MixerCase c = bf16_long_case(shape(1, 1, 64, 8, levels), 3 * kBlockTokens + 130, 3);
            check(c);
            check(c, {0, 1, 3});
            const cuda::backward::BatchLimit limit(1);  // a block at a time
            check(c, {0, 1});
        }
    }
    void check_decays(std::int64_t tokens) const {
        for (const std::int64_t levels : {15, 0}) {
            for (const float decay : {0.0F, -20.0F, -320.0F, -kInfinity}) {
                MixerCase c = bf16_case(shape(2, 1, 64, 8, levels), tokens, 5);
                std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
                check(c);
            }
            MixerCase c = bf16_case(shape(2, 1, 64, 8, levels), tokens, 6);
            for (std::size_t i = 0; i < c.log_decay.size(); i += 37) c.log_decay[i] = i % 2 == 0 ? -kInfinity : -5e5F;
            check(c);
        }
    }
    /// Heads that share keys, in more than one block: again, and after the forward pass.
    void check_same_bits() const {
        for (const std::int64_t levels : {15, 0}) {
            const MixerCase c = bf16_case(shape(4, 2, 128, 64, levels), kBlockTokens + 300, 7);
            const std::vector<float> d_out = bf16_d_out(c);
            const MixerGradientRows once = gpu_gradients(c, d_out, Operand::kBf16);
            CHECK(once == gpu_gradients(c, d_out, Operand::kBf16));
            CHECK(once == gpu_gradients(c, d_out, Operand::kBf16, {0}, true));
        }
    }
};

}  // namespace fenwick::test
