// Element types of stored arrays, under the names of the safetensors format, and their conversion to fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fenwick {

enum class Dtype {
    kF64,
    kF32,
    kF16,
    kBF16,
    kI64,
    kI32,
    kI16,
    kI8,
    kU64,
    kU32,
    kU16,
    kU8,
    kBool,
    kF8E4M3,
    kF8E5M2,
    kF8E8M0,
};

[[nodiscard]] std::int64_t element_size(Dtype dtype);  ///< bytes
[[nodiscard]] std::string_view dtype_name(Dtype dtype);
[[nodiscard]] std::optional<Dtype> parse_dtype(std::string_view name);

/// Elements (1 for no dimensions) or bytes of an array; nothing when a dimension is negative or 64 bits do not hold it.
[[nodiscard]] std::optional<std::int64_t> array_elements(std::span<const std::int64_t> shape);
[[nodiscard]] std::optional<std::int64_t> array_bytes(Dtype dtype, std::span<const std::int64_t> shape);
/// "[4096, 128]"
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

/// Little-endian elements at `in` (any alignment; out.size() of them) to fp32. F32, F16 and BF16 are exact, infinities
/// and NaN included; F64 rounds to nearest. Throws DataError naming `what` and the dtype for every other one: F8
/// without its scales, or integers, are not weights.
void convert_to_f32(Dtype dtype, const std::byte* in, std::span<float> out, std::string_view what);

/// The nearest bf16 values, ties to even; `out` has the size of `in`. Past the largest it is infinity; NaN stays NaN.
void round_to_bf16(std::span<const float> in, std::span<std::uint16_t> out);

}  // namespace fenwick
