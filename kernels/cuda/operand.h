// The operand types on the device: what a kernel template is instantiated for, and how values are read and written.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/cuda/check.h"
#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

[[nodiscard]] constexpr std::int64_t operand_size(Operand operand) {
    return operand == Operand::kBf16 ? 2 : 4;
}

__device__ inline float to_float(float x) {
    return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
template <class T>
__device__ inline T from_float(float x) {
    if constexpr (sizeof(T) == 2) {
        return __float2bfloat16_rn(x);
    } else {
        return x;
    }
}

/// kCount neighbouring values, moved in one access: the address is a multiple of kCount values.
template <int kCount>
struct Values {
    float at[kCount];
};

__device__ inline Values<4> load_four(const float* from) {
    const float4 raw = *reinterpret_cast<const float4*>(from);
    return {{raw.x, raw.y, raw.z, raw.w}};
}
__device__ inline Values<4> load_four(const __nv_bfloat16* from) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.x));
    const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.y));
    return {{low.x, low.y, high.x, high.y}};
}
__device__ inline Values<2> load_two(const float* from) {
    const float2 raw = *reinterpret_cast<const float2*>(from);
    return {{raw.x, raw.y}};
}
__device__ inline Values<2> load_two(const __nv_bfloat16* from) {
    const float2 raw = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
    return {{raw.x, raw.y}};
}
__device__ inline void store_two(float* to, const Values<2>& values) {
    *reinterpret_cast<float2*>(to) = make_float2(values.at[0], values.at[1]);
}
__device__ inline void store_two(__nv_bfloat16* to, const Values<2>& values) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(values.at[0], values.at[1]);
}
__device__ inline void store_four(float* to, const Values<4>& values) {
    *reinterpret_cast<float4*>(to) = make_float4(values.at[0], values.at[1], values.at[2], values.at[3]);
}
__device__ inline void store_four(__nv_bfloat16* to, const Values<4>& values) {
    uint2 raw;
    *reinterpret_cast<__nv_bfloat162*>(&raw.x) = __floats2bfloat162_rn(values.at[0], values.at[1]);
    *reinterpret_cast<__nv_bfloat162*>(&raw.y) = __floats2bfloat162_rn(values.at[2], values.at[3]);
    *reinterpret_cast<uint2*>(to) = raw;
}

template <int kCount, class T>
__device__ inline Values<kCount> load_values(const T* from) {
    static_assert(kCount == 1 || kCount == 2 || kCount == 4);
    if constexpr (kCount == 4) {
        return load_four(from);
    } else if constexpr (kCount == 2) {
        return load_two(from);
    } else {
        return {{to_float(*from)}};
    }
}

template <int kCount, class T>
__device__ inline void store_values(T* to, const Values<kCount>& values) {
    if constexpr (kCount == 4) {
        store_four(to, values);
    } else if constexpr (kCount == 2) {
        store_two(to, values);
    } else {
        *to = from_float<T>(values.at[0]);
    }
}

template <class T>
struct TypeTag {
    using Type = T;
};

/// Calls body(TypeTag<element type>).
template <class Body>
void with_operand(Operand operand, const Body& body) {
    if (operand == Operand::kBf16) {
        body(TypeTag<__nv_bfloat16>());
    } else {
        body(TypeTag<float>());
    }
}

/// True when rows that start at `data`, `stride` elements apart, can be moved four values at a time.
[[nodiscard]] inline bool fours(const void* data, std::int64_t stride, std::int64_t element_bytes) {
    return data == nullptr ||
           (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(4 * element_bytes) == 0 &&
            stride % 4 == 0);
}

// Elementary functions in fp32 with the accurate library versions: differences to the CPU's stay at a few ulp.
__device__ inline float sigmoid(float x) {
    const float z = expf(-fabsf(x));
    return (x < 0.0F ? z : 1.0F) / (1.0F + z);
}
__device__ inline float silu(float x) {
    return x * sigmoid(x);
}
/// silu for values that are rounded to T: beside bf16's 2^-9 the fast functions' few ulp do not count.
template <class T>
__device__ inline float silu_for(float x) {
    if constexpr (sizeof(T) == 2) {
        return __fdividef(x, 1.0F + __expf(-x));
    } else {
        return silu(x);
    }
}
__device__ inline float softplus(float x) {
    return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)));
}

/// Sum over the threads of a block, the same bits in every thread: lanes by a butterfly, then warps in order.
/// `scratch`: 32 floats of shared memory; may be used again after the next __syncthreads().
__device__ inline float block_sum(float value, float* scratch) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, offset);
    const int warps = static_cast<int>(blockDim.x) / 32;
    if (warps == 1) return value;
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0F;
    for (int w = 0; w < warps; ++w) sum += scratch[w];
    return sum;
}

__device__ inline float block_maximum(float value, float* scratch) {
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
    const int warps = static_cast<int>(blockDim.x) / 32;
    if (warps == 1) return value;
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    float maximum = scratch[0];
    for (int w = 1; w < warps; ++w) maximum = fmaxf(maximum, scratch[w]);
    return maximum;
}

}  // namespace fenwick::cuda
