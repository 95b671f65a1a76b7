// kernels/cuda/matrix_ptx.cuh on the host: the same functions, by those of tile.cuh beside this file.
#pragma once
#include "kernels/cuda/tile.cuh"
#define FENWICK_MATRIX_WGMMA 0
namespace fenwick::cuda::matrix {
inline std::uint32_t shared_address(const void* p) {
    return cuda::shared_address(p);
}
inline std::uint32_t pack(float low, float high) {
    return pack_bf16(low, high);
}
inline float exp2_of(float x) {
    return exp2f(x);
}
inline void copy_16(std::uint32_t to, const void* from, bool valid) {
    copy_async_few<16>(to, from, valid);
}
inline void copy_4(std::uint32_t to, const void* from, bool valid) {
    copy_async_few<4>(to, from, valid);
}
inline void copies_commit() {
    copy_async_commit();
}
template <int kPending>
void copies_wait() {
    copy_async_wait<kPending>();
}
inline void publish_shared() {}
inline void ldmatrix(std::uint32_t (&r)[4], std::uint32_t at) {
    load_matrices(r, at);
}
inline void ldmatrix_transposed(std::uint32_t (&r)[4], std::uint32_t at) {
    load_matrices_transposed(r, at);
}
inline void mma(float& c0, float& c1, float& c2, float& c3, const std::uint32_t (&a)[4], std::uint32_t b0,
                std::uint32_t b1) {
    float d[4] = {c0, c1, c2, c3};
    mma_16x8x16(d, a, b0, b1);
    c0 = d[0];
    c1 = d[1];
    c2 = d[2];
    c3 = d[3];
}
/// Rows of an 8x8 tile lie in four lanes, two elements each.
inline std::uint32_t transposed(std::uint32_t pairs) {
    const unsigned char* all = cuda_on_host::warp_exchange(&pairs, sizeof(pairs), ~0U);
    const int lane = cuda_on_host::lane();
    std::uint32_t r = 0;
    for (int e = 0; e < 2; ++e) {
        const int row = lane % 4 * 2 + e;
        const int column = lane / 4;
        std::uint32_t word;
        std::memcpy(&word, all + cuda_on_host::kLaneBytes * static_cast<unsigned>(row * 4 + column / 2), 4);
        r |= (column % 2 == 0 ? word & 0xffffU : word >> 16) << (16 * e);
    }
    return r;
}
inline std::int64_t opaque(std::int64_t x) {
    return x;
}
inline std::uint32_t opaque(std::uint32_t x) {
    return x;
}
inline int lane_now() {
    return cuda_on_host::lane();
}
template <int kSize>
void keep(float (&)[kSize]) {}
inline void products_fence() {}
inline void products_commit() {}
template <int kPending>
void products_wait() {}
}  // namespace fenwick::cuda::matrix
