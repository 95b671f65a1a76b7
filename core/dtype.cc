#include "core/dtype.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <cstring>

#include "core/errors.h"

namespace fenwick {
namespace {

static_assert(std::endian::native == std::endian::little, "stored arrays are little-endian and are read as they are");

struct DtypeFacts {
    Dtype dtype;
    std::string_view name;
    std::int64_t size;
};

// In the order of the enumeration.
constexpr std::array<DtypeFacts, 16> kFacts = {{
    {Dtype::kF64, "F64", 8},
    {Dtype::kF32, "F32", 4},
    {Dtype::kF16, "F16", 2},
    {Dtype::kBF16, "BF16", 2},
    {Dtype::kI64, "I64", 8},
    {Dtype::kI32, "I32", 4},
    {Dtype::kI16, "I16", 2},
    {Dtype::kI8, "I8", 1},
    {Dtype::kU64, "U64", 8},
    {Dtype::kU32, "U32", 4},
    {Dtype::kU16, "U16", 2},
    {Dtype::kU8, "U8", 1},
    {Dtype::kBool, "BOOL", 1},
    {Dtype::kF8E4M3, "F8_E4M3", 1},
    {Dtype::kF8E5M2, "F8_E5M2", 1},
    {Dtype::kF8E8M0, "F8_E8M0", 1},
}};

const DtypeFacts& facts(Dtype dtype) {
    const auto index = static_cast<std::size_t>(dtype);
    if (index >= kFacts.size() || kFacts[index].dtype != dtype) throw InternalError("impossible Dtype value");
    return kFacts[index];
}

float from_bf16(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float from_f16(std::uint16_t bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7FFFU) << 13;
    // The exponent moves from bias 15 to 127 by an exact product with 2^112, which also makes normals of subnormals.
    const std::uint32_t finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
    const std::uint32_t special = magnitude | 0x7F800000U;  // infinity, NaN with its payload
    return std::bit_cast<float>(sign | (magnitude >= 0x0F800000U ? special : finite));
}

/// Unaligned loads by memcpy; the compiler turns the loop into vector code.
template <class Stored, class Convert>
void convert_loop(const std::byte* in, std::span<float> out, Convert convert) {
    const std::size_t n = out.size();
    float* to = out.data();
    for (std::size_t i = 0; i < n; ++i) {
        Stored value;
        std::memcpy(&value, in + i * sizeof(Stored), sizeof(Stored));
        to[i] = convert(value);
    }
}

}  // namespace

std::int64_t element_size(Dtype dtype) {
    return facts(dtype).size;
}

std::string_view dtype_name(Dtype dtype) {
    return facts(dtype).name;
}

std::optional<Dtype> parse_dtype(std::string_view name) {
    for (const DtypeFacts& fact : kFacts) {
        if (fact.name == name) return fact.dtype;
    }
    return std::nullopt;
}

std::optional<std::int64_t> array_elements(std::span<const std::int64_t> shape) {
    std::int64_t elements = 1;
    for (const std::int64_t dimension : shape) {
        if (dimension < 0 || __builtin_mul_overflow(elements, dimension, &elements)) return std::nullopt;
    }
    return elements;
}

std::optional<std::int64_t> array_bytes(Dtype dtype, std::span<const std::int64_t> shape) {
    const auto elements = array_elements(shape);
    std::int64_t bytes = 0;
    if (!elements || __builtin_mul_overflow(*elements, element_size(dtype), &bytes)) return std::nullopt;
    return bytes;
}

std::string shape_text(std::span<const std::int64_t> shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

void convert_to_f32(Dtype dtype, const std::byte* in, std::span<float> out, std::string_view what) {
    if (out.empty()) return;
    switch (dtype) {
        case Dtype::kF64:
            convert_loop<double>(in, out, [](double value) { return static_cast<float>(value); });
            return;
        case Dtype::kF32:
            std::memcpy(out.data(), in, out.size_bytes());
            return;
        case Dtype::kF16:
            convert_loop<std::uint16_t>(in, out, from_f16);
            return;
        case Dtype::kBF16:
            convert_loop<std::uint16_t>(in, out, from_bf16);
            return;
        default:
            throw DataError(
                fmt::format("{}: dtype {} cannot be used as weights; expected F64, F32, F16 or BF16 (convert quantised "
                            "checkpoints to one of these first)",
                            what, dtype_name(dtype)));
    }
}

void round_to_bf16(std::span<const float> in, std::span<std::uint16_t> out) {
    for (std::size_t i = 0; i < in.size(); ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(in[i]);
        const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
        // Half of the last kept bit, less one where that bit is even: the carry rounds. A NaN only keeps a bit that
        // says so.
        const std::uint32_t rounded = is_nan ? bits | 0x400000U : bits + 0x7fffU + ((bits >> 16) & 1U);
        out[i] = static_cast<std::uint16_t>(rounded >> 16);
    }
}

}  // namespace fenwick
