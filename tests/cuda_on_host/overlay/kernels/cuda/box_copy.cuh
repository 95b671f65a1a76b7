// kernels/cuda/box_copy.cuh on the host, where no kernel copies boxes.
#pragma once
#include "kernels/cuda/tile.cuh"
namespace fenwick::cuda {
inline void init_barrier(std::uint32_t, std::uint32_t) {
    std::abort();
}
inline void init_byte_barrier(std::uint32_t) {
    std::abort();
}
inline void arrive(std::uint32_t) {
    std::abort();
}
inline void expect_bytes(std::uint32_t, std::uint32_t) {
    std::abort();
}
template <class Map>
void copy_box(std::uint32_t, const Map&, int, int, std::uint32_t) {
    std::abort();
}
template <class Map>
void prefetch_box(const Map&, int, int) {
    std::abort();
}
inline void copy_bytes(std::uint32_t, const void*, std::uint32_t, std::uint32_t) {
    std::abort();
}
inline void await_phase(std::uint32_t, std::uint32_t) {
    std::abort();
}
}  // namespace fenwick::cuda
