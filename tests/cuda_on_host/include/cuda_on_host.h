// Runs CUDA C++ on the host, for checking: a thread block is a set of fibers on one thread, switched at barriers and
// warp collectives. See README.md.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>

#define __CUDACC__ 1
#define __CUDA_ON_HOST__ 1
#define __host__
#define __device__
#define __global__ static __attribute__((unused))
#define __shared__ static
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct uint3_ {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
inline uint3_ threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
inline int4 make_int4(int x, int y, int z, int w) {
    return {x, y, z, w};
}

namespace cuda_on_host {
struct Launch {
    dim3 grid, block;
    std::size_t shared;
};
void run(const Launch& launch, const std::function<void()>& body, const char* name);
void sync_threads();                   // of the block
int sync_count(int predicate);         // __syncthreads_count
void sync_named(int id, int threads);  // bar.sync id, threads
unsigned char* dynamic_shared();
std::size_t dynamic_shared_bytes();
// Every live lane of the warp puts `bytes` in and gets a pointer to all 32 lanes' values (stride kLaneBytes).
inline constexpr std::size_t kLaneBytes = 128;
const unsigned char* warp_exchange(const void* value, std::size_t bytes, unsigned mask);
int lane();
// cp.async: `from` null: zeros. The running thread's copies of a group arrive at a wait that leaves at most `pending`
// later groups.
void copy_later(unsigned char* to, const void* from, int bytes);
void copies_commit();
void copies_wait(int pending);
template <class T>
struct Id {
    using type = T;
};
template <class T>
T shuffle(T value, int from) {
    const unsigned char* all = warp_exchange(&value, sizeof(T), 0xffffffffU);
    T got;
    std::memcpy(&got, all + kLaneBytes * static_cast<unsigned>(from), sizeof(T));
    return got;
}
template <class B>
void launch(dim3 grid, dim3 block, std::size_t shared, const char* name, B body) {
    run({grid, block, shared}, body, name);
}
struct Config {
    dim3 grid, block;
    std::size_t shared;
    Config(dim3 g, dim3 b, std::size_t s = 0, const void* = nullptr) : grid(g), block(b), shared(s) {}
};
template <class B>
void launch(const Config& c, const char* name, B body) {
    run({c.grid, c.block, c.shared}, body, name);
}
}  // namespace cuda_on_host

inline void __syncthreads() {
    cuda_on_host::sync_threads();
}
inline int __syncthreads_count(int p) {
    return cuda_on_host::sync_count(p);
}
inline int __syncthreads_or(int p) {
    return cuda_on_host::sync_count(p) != 0;
}
inline int __syncthreads_and(int p) {
    return cuda_on_host::sync_count(!p) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffU) {
    char c = 0;
    cuda_on_host::warp_exchange(&c, 1, mask);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T>
T __shfl_sync(unsigned, T v, int from, int width = 32) {
    int l = cuda_on_host::lane();
    return cuda_on_host::shuffle(v, (l & ~(width - 1)) | (from & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int x, int = 32) {
    return cuda_on_host::shuffle(v, cuda_on_host::lane() ^ x);
}
template <class T>
T __shfl_up_sync(unsigned, T v, int d, int width = 32) {
    int l = cuda_on_host::lane();
    return cuda_on_host::shuffle(v, (l % width) >= d ? l - d : l);
}
template <class T>
T __shfl_down_sync(unsigned, T v, int d, int width = 32) {
    int l = cuda_on_host::lane();
    return cuda_on_host::shuffle(v, (l % width) + d < width ? l + d : l);
}
inline unsigned __ballot_sync(unsigned, int p) {
    const unsigned char* all = cuda_on_host::warp_exchange(&p, sizeof(p), 0xffffffffU);
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) {
        int q;
        std::memcpy(&q, all + cuda_on_host::kLaneBytes * i, 4);
        r |= (q ? 1U : 0U) << i;
    }
    return r;
}
inline int __any_sync(unsigned m, int p) {
    return __ballot_sync(m, p) != 0;
}
inline int __all_sync(unsigned m, int p) {
    return __ballot_sync(m, p) == 0xffffffffU;
}

template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class T>
T __ldcg(const T* p) {
    return *p;
}
template <class T>
T __ldcs(const T* p) {
    return *p;
}
template <class T, class U>
void __stcs(T* p, U v) {
    *p = v;
}
template <class T, class U>
void __stcg(T* p, U v) {
    *p = v;
}
inline float __expf(float x) {
    return std::exp(x);
}
inline float __logf(float x) {
    return std::log(x);
}
inline float exp2f_(float x) {
    return std::exp2(x);
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __frcp_rn(float a) {
    return 1.0F / a;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float rsqrtf(float a) {
    return 1.0F / std::sqrt(a);
}
inline float __frsqrt_rn(float a) {
    return 1.0F / std::sqrt(a);
}
inline float __uint_as_float(unsigned x) {
    float f;
    std::memcpy(&f, &x, 4);
    return f;
}
inline float __int_as_float(int x) {
    float f;
    std::memcpy(&f, &x, 4);
    return f;
}
inline unsigned __float_as_uint(float x) {
    unsigned f;
    std::memcpy(&f, &x, 4);
    return f;
}
inline int __float_as_int(float x) {
    int f;
    std::memcpy(&f, &x, 4);
    return f;
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return static_cast<std::common_type_t<A, B>>(a) < static_cast<std::common_type_t<A, B>>(b) ? a : b;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return static_cast<std::common_type_t<A, B>>(a) < static_cast<std::common_type_t<A, B>>(b) ? b : a;
}

inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
    const unsigned long long old = *at;
    if (value < old) *at = value;
    return old;
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
    const unsigned long long old = *at;
    *at = old + value;
    return old;
}
using std::isfinite;
using std::isnan;

#include "host_bf16.h"
#include "host_runtime.h"
