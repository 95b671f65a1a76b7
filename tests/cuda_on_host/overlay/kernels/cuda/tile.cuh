// kernels/cuda/tile.cuh on the host: the same functions as warp collectives of the fibers.
#pragma once
#include "cuda_on_host.h"
namespace fenwick::cuda {
inline constexpr int kTileColumns = 64;
inline constexpr int kTileRowBytes = 128;
constexpr std::uint32_t tile_offset(int row, int piece) {
    return static_cast<std::uint32_t>(row * kTileRowBytes + ((piece ^ (row & 7)) << 4));
}
// Addresses of shared memory are offsets from 1024, so that rounding up to 1,024 bytes is seen.
inline constexpr std::uint32_t kHostShared = 1024;
inline std::uint32_t shared_address(const void* p) {
    const auto* base = cuda_on_host::dynamic_shared();
    const auto off = static_cast<const unsigned char*>(p) - base;
    if (off < 0 || static_cast<std::size_t>(off) > cuda_on_host::dynamic_shared_bytes()) {
        std::fprintf(stderr, "shared_address of other memory\n");
        std::abort();
    }
    return kHostShared + static_cast<std::uint32_t>(off);
}
inline unsigned char* shared_pointer(std::uint32_t at, std::size_t bytes) {
    if (at < kHostShared || at - kHostShared + bytes > cuda_on_host::dynamic_shared_bytes() || at % bytes != 0) {
        std::fprintf(stderr, "shared memory out of bounds: %u + %zu\n", at, bytes);
        std::abort();
    }
    return cuda_on_host::dynamic_shared() + (at - kHostShared);
}
// A copy arrives when its thread waits for its group, not before.
template <int kBytes>
void copy_async_few(std::uint32_t to, const void* from, bool valid) {
    unsigned char* place = shared_pointer(to, kBytes);
    if (valid && reinterpret_cast<std::uintptr_t>(from) % kBytes != 0) {
        std::fprintf(stderr, "cp.async: address\n");
        std::abort();
    }
    cuda_on_host::copy_later(place, valid ? from : nullptr, kBytes);
}
inline void copy_async_16(std::uint32_t to, const void* from, bool valid) {
    copy_async_few<16>(to, from, valid);
}
inline void copy_async_commit() {
    cuda_on_host::copies_commit();
}
template <int kPending>
void copy_async_wait() {
    cuda_on_host::copies_wait(kPending);
}
inline void fence_for_wgmma() {}
inline void load_matrices_(std::uint32_t (&r)[4], std::uint32_t at, bool transposed) {
    const unsigned char* all = cuda_on_host::warp_exchange(&at, 4, ~0U);
    std::uint32_t rows[32];
    for (int i = 0; i < 32; ++i) std::memcpy(&rows[i], all + cuda_on_host::kLaneBytes * i, 4);
    const int lane = cuda_on_host::lane();
    for (int m = 0; m < 4; ++m) {
        std::uint16_t v[2];
        for (int e = 0; e < 2; ++e) {
            const int row = transposed ? lane % 4 * 2 + e : lane / 4;
            const int col = transposed ? lane / 4 : lane % 4 * 2 + e;
            std::memcpy(&v[e], shared_pointer(rows[8 * m + row], 16) + 2 * col, 2);
        }
        r[m] = v[0] | (static_cast<std::uint32_t>(v[1]) << 16);
    }
    __syncwarp();
}
inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t at) {
    load_matrices_(r, at, false);
}
inline void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t at) {
    load_matrices_(r, at, true);
}
inline float low_bf16(std::uint32_t both) {
    return __uint_as_float(both << 16);
}
inline float high_bf16(std::uint32_t both) {
    return __uint_as_float(both & 0xffff0000U);
}
inline std::uint32_t pack_bf16(float low, float high) {
    return __float2bfloat16_rn(low).bits | (static_cast<std::uint32_t>(__float2bfloat16_rn(high).bits) << 16);
}
inline void mma_16x8x16(float* d, const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    const std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const unsigned char* all = cuda_on_host::warp_exchange(mine, sizeof(mine), ~0U);
    const auto word = [&](int lane, int i) {
        std::uint32_t w;
        std::memcpy(&w, all + cuda_on_host::kLaneBytes * lane + 4 * i, 4);
        return w;
    };
    const int lane = cuda_on_host::lane();
    const int row = lane / 4, col = lane % 4 * 2;
    for (int quad = 0; quad < 4; ++quad) {
        for (int half = 0; half < 2; ++half) {  // k 0-7, 8-15
            const std::uint32_t lo = word(row * 4 + quad, 2 * half), hi = word(row * 4 + quad, 2 * half + 1);
            for (int e = 0; e < 2; ++e) {
                const std::uint32_t b = word((col + e) * 4 + quad, 4 + half);
                d[e] += low_bf16(lo) * low_bf16(b) + high_bf16(lo) * high_bf16(b);
                d[2 + e] += low_bf16(hi) * low_bf16(b) + high_bf16(hi) * high_bf16(b);
            }
        }
    }
    __syncwarp();
}
inline void transpose_quad(std::uint32_t (&w)[4], int lane) {
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool upper = (lane & bit) != 0;
        for (int i = 0; i < 4; ++i) {
            if ((i & bit) != 0) continue;
            const std::uint32_t got = __shfl_xor_sync(0xffffffffU, upper ? w[i] : w[i | bit], bit);
            (upper ? w[i] : w[i | bit]) = got;
        }
    }
}
inline void load_a(std::uint32_t (&a)[4], std::uint32_t tile, int warp, int step, int lane) {
    load_matrices(a, tile + tile_offset(16 * warp + (lane & 15), 2 * step + (lane >> 4)));
}
enum class Rows { kDepth, kColumns };
inline void product_commit() {}
template <int kPending>
void product_wait() {}
inline void product_done(float (&acc)[32]) {
    (void)acc;
}
template <int kSteps, Rows kRows, bool kAdd>
inline void issue_product(float (&acc)[32], const std::uint32_t (*a)[4], std::uint32_t tile, int lane) {
    if constexpr (!kAdd)
        for (float& x : acc) x = 0.0F;
    for (int s = 0; s < kSteps; ++s)
        for (int n = 0; n < 4; ++n) {
            std::uint32_t b[4];
            if constexpr (kRows == Rows::kDepth)
                load_matrices_transposed(b, tile + tile_offset(16 * s + (lane & 15), 2 * n + (lane >> 4)));
            else
                load_matrices(b,
                              tile + tile_offset(16 * n + (lane & 7) + ((lane >> 4) << 3), 2 * s + ((lane >> 3) & 1)));
            mma_16x8x16(acc + 8 * n, a[s], b[0], b[1]);
            mma_16x8x16(acc + 8 * n + 4, a[s], b[2], b[3]);
        }
}
inline void issue_transposed_product(float (&acc)[32], std::uint32_t a_tile, std::uint32_t b_tile, int warp, int lane) {
    for (int s = 0; s < 4; ++s) {
        std::uint32_t a[4];
        load_matrices_transposed(
            a, a_tile + tile_offset(16 * s + (lane & 7) + ((lane >> 4) << 3), 2 * warp + ((lane >> 3) & 1)));
        for (int n = 0; n < 4; ++n) {
            std::uint32_t b[4];
            load_matrices_transposed(b, b_tile + tile_offset(16 * s + (lane & 15), 2 * n + (lane >> 4)));
            mma_16x8x16(acc + 8 * n, a, b[0], b[1]);
            mma_16x8x16(acc + 8 * n + 4, a, b[2], b[3]);
        }
    }
}
}  // namespace fenwick::cuda
