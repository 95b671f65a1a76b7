// Elementary functions in fp32, inlined and free of branches and library calls, so that loops over them vectorise.
//
// Every product and sum that may round is written as an explicit fma or stands alone, so that the value is the same in
// a vector body, in the remainder of a loop, and in scalar code. gcc needs -fno-trapping-math to vectorise the selects.
// Largest errors, in units in the last place (ulp) of the result and over all inputs, are stated with each function and
// checked by tests/kernels/vector_math_test.cc. The polynomials are least-maximum fits of the relative error, computed
// for this file.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace fenwick {

namespace vector_math_detail {

inline constexpr float kLog2e = 1.44269504F;
inline constexpr float kLn2High = 0.693147182F;     // a multiple of 2^-24: x - n * kLn2High is exact in one fma
inline constexpr float kLn2Low = -1.90465430e-9F;   // ln 2 - kLn2High
inline constexpr float kRoundToInteger = 12582912;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

[[gnu::always_inline]] inline float fused(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}

/// log(1 + m) for m in [-1/4, 1/2].
[[gnu::always_inline]] inline float log1p_core(float m) {
    float q = 0.0376657508F;
    q = fused(q, m, -0.0911542103F);
    q = fused(q, m, 0.117005378F);
    q = fused(q, m, -0.12727879F);
    q = fused(q, m, 0.142762646F);
    q = fused(q, m, -0.166552916F);
    q = fused(q, m, 0.199996039F);
    q = fused(q, m, -0.250001639F);
    q = fused(q, m, 0.333333403F);
    const float square = m * m;
    return fused(fused(q, m, -0.5F), square, m);
}

}  // namespace vector_math_detail

/// e^x within 1.1 ulp (denormal results included). exp(-inf) = 0, overflow gives inf, NaN stays NaN.
[[gnu::always_inline]] inline float vexp(float x) {
    namespace d = vector_math_detail;
    // Beyond these the result is 0 or inf anyway; a NaN fails both comparisons and passes through.
    const float above = x < -104.0F ? -104.0F : x;
    const float clamped = above > 89.0F ? 89.0F : above;
    const float shifted = d::fused(clamped, d::kLog2e, d::kRoundToInteger);
    const float n = shifted - d::kRoundToInteger;
    float r = d::fused(n, -d::kLn2High, clamped);
    r = d::fused(n, -d::kLn2Low, r);
    float p = 0.00138144323F;
    p = d::fused(p, r, 0.00836878363F);
    p = d::fused(p, r, 0.0416683964F);
    p = d::fused(p, r, 0.166665196F);
    p = d::fused(p, r, 0.49999994F);
    const float square = r * r;
    p = d::fused(p, square, r) + 1.0F;
    // 2^n in two factors, each a normal number, so that denormal results round once and 2^128 can be reached.
    const auto integer = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - 0x4B400000U);
    const std::int32_t half = integer >> 1;
    const std::uint32_t rest = static_cast<std::uint32_t>(integer) - static_cast<std::uint32_t>(half);
    const float scale_a = std::bit_cast<float>((static_cast<std::uint32_t>(half) + 127U) << 23U);
    const float scale_b = std::bit_cast<float>((rest + 127U) << 23U);
    return p * scale_a * scale_b;
}

/// log(1 + x) within 1.5 ulp. log1p(-1) = -inf, NaN below -1, log1p(+-0) = +-0, log1p(inf) = inf, NaN stays NaN.
[[gnu::always_inline]] inline float vlog1p(float x) {
    namespace d = vector_math_detail;
    // 1 + x = 2^e (1 + m) with 1 + m in [3/4, 3/2): m = x 2^-e + (2^-e - 1), the bracket exact where it matters.
    const float u = 1.0F + x;
    const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(u) - 0x3F400000U) & 0xFF800000U;
    const float four_scale = std::bit_cast<float>(0x40800000U - exponent);  // 2^(2 - e): normal for every e
    const float m = d::fused(0.25F * x, four_scale, d::fused(0.25F, four_scale, -1.0F));
    const float e = static_cast<float>(static_cast<std::int32_t>(exponent)) * 0x1p-23F;
    const float sum = d::fused(e, d::kLn2High, d::fused(e, d::kLn2Low, d::log1p_core(m)));
    const float magnitude = __builtin_fabsf(x);
    const float inside = magnitude < 0x1p-25F ? x : sum;     // also keeps denormals and the sign of zero
    const float finite = x < d::kInfinity ? inside : x + x;  // inf and NaN
    const float pole = x == -1.0F ? -d::kInfinity : std::numeric_limits<float>::quiet_NaN();
    return x > -1.0F ? finite : pole;
}

/// 1 / (1 + e^-x) within 2.5 ulp. NaN stays NaN.
[[gnu::always_inline]] inline float vsigmoid(float x) {
    const float z = vexp(-__builtin_fabsf(x));
    const float numerator = x < 0.0F ? z : 1.0F;
    return numerator / (1.0F + z);
}

/// log(1 + e^x) within 2.5 ulp. softplus(-inf) = 0, softplus(inf) = inf, NaN stays NaN.
[[gnu::always_inline]] inline float vsoftplus(float x) {
    namespace d = vector_math_detail;
    const float z = vexp(-__builtin_fabsf(x));  // in [0, 1]
    // As vlog1p, with e either 0 or 1.
    const bool large = z >= 0.5F;
    const float m = large ? d::fused(0.5F, z, -0.5F) : z;
    const float core = d::log1p_core(m);
    const float log_term = large ? d::kLn2High + (core + d::kLn2Low) : core;
    return (x > 0.0F ? x : 0.0F) + log_term;
}

/// x * sigmoid(x) within 3 ulp for x > -87; below that, where |silu| < 2e-36, within 1e-43. silu(-inf) is NaN (an
/// infinite activation is a fault that must show), NaN stays NaN.
[[gnu::always_inline]] inline float vsilu(float x) {
    return x * vsigmoid(x);
}

}  // namespace fenwick
