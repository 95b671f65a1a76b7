// bf16 and its conversions, rounded to nearest even.
#pragma once
#include "cuda_on_host.h"

struct __nv_bfloat16 {
    std::uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline float __bfloat162float(__nv_bfloat16 v) {
    return __uint_as_float(static_cast<unsigned>(v.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
    unsigned b = __float_as_uint(f);
    if (f != f) return {0x7fff};
    b += 0x7fffU + ((b >> 16) & 1U);
    return {static_cast<std::uint16_t>(b >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float f) {
    return __float2bfloat16_rn(f);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
    return {__bfloat162float(v.x), __bfloat162float(v.y)};
}
inline float __low2float(__nv_bfloat162 v) {
    return __bfloat162float(v.x);
}
inline float __high2float(__nv_bfloat162 v) {
    return __bfloat162float(v.y);
}
