#include "core/dtype.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/errors.h"
#include "temporary_folder.h"

using Catch::Matchers::Contains;
using namespace fenwick;

namespace {

/// IEEE 754 binary16 from its definition, in double.
double half_value(std::uint32_t bits) {
    const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
    const int exponent = static_cast<int>((bits >> 10) & 31U);
    const int fraction = static_cast<int>(bits & 1023U);
    if (exponent == 31) return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    if (exponent == 0) return sign * std::ldexp(fraction, -24);
    return sign * std::ldexp(1024 + fraction, exponent - 25);
}

std::vector<std::uint16_t> all_16_bit_values() {
    std::vector<std::uint16_t> values(65536);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
    return values;
}

}  // namespace

TEST_CASE("every half converts to its exact value") {
    const auto stored = all_16_bit_values();
    std::vector<float> out(stored.size());
    convert_to_f32(Dtype::kF16, reinterpret_cast<const std::byte*>(stored.data()), out, "t");
    for (std::uint32_t i = 0; i < 65536; ++i) {
        const double expected = half_value(i);
        if (std::isnan(expected)) {
            if (!std::isnan(out[i])) FAIL("half " << i << " must be NaN");
        } else if (out[i] != expected || std::signbit(out[i]) != std::signbit(expected)) {
            FAIL("half " << i << ": " << out[i] << " instead of " << expected);
        }
    }
    CHECK(out[0x3C00] == 1.0F);
    CHECK(out[0x0001] == 0x1p-24F);
}

TEST_CASE("every bfloat16 converts to the float with its bits on top") {
    const auto stored = all_16_bit_values();
    std::vector<float> out(stored.size());
    convert_to_f32(Dtype::kBF16, reinterpret_cast<const std::byte*>(stored.data()), out, "t");
    for (std::uint32_t i = 0; i < 65536; ++i) {
        if (std::bit_cast<std::uint32_t>(out[i]) != i << 16) FAIL("bfloat16 " << i);
    }
    CHECK(out[0xFF80] == -std::numeric_limits<float>::infinity());
}

TEST_CASE("F32 and F64 convert from addresses without alignment") {
    // C5: ln 15.9 must not pass through bf16 (2.765625), and -inf is a legal A_log.
    const std::vector<float> singles = {2.766319F, -std::numeric_limits<float>::infinity(), 0x1p-149F, -0.0F};
    std::vector<std::byte> raw(1 + singles.size() * sizeof(float));
    std::memcpy(raw.data() + 1, singles.data(), singles.size() * sizeof(float));
    std::vector<float> out(singles.size());
    convert_to_f32(Dtype::kF32, raw.data() + 1, out, "t");
    CHECK(fenwick::testing::bytes_at(out.data(), 16) == fenwick::testing::bytes_at(singles.data(), 16));

    const std::vector<double> doubles = {0.1, -std::numeric_limits<double>::infinity(), 1.0 + 0x1p-24 + 0x1p-40, 3};
    raw.resize(3 + doubles.size() * sizeof(double));
    std::memcpy(raw.data() + 3, doubles.data(), doubles.size() * sizeof(double));
    convert_to_f32(Dtype::kF64, raw.data() + 3, out, "t");
    CHECK(out[0] == 0.1F);
    CHECK(out[1] == -std::numeric_limits<float>::infinity());
    CHECK(out[2] == 1.0F + 0x1p-23F);  // just above the middle of two floats: rounds up
    CHECK(out[3] == 3.0F);
}

// Against the definition: of the two neighbours of x in bf16 the nearer one, at a tie the one whose last bit is 0.
TEST_CASE("bf16 rounds to nearest, ties to even") {
    const auto round = [](std::uint32_t bits) {
        const auto in = std::bit_cast<float>(bits);
        std::uint16_t out = 0;
        round_to_bf16({&in, 1}, {&out, 1});
        return out;
    };
    for (const std::uint32_t high : {0x0000U, 0x0001U, 0x3f80U, 0x3f81U, 0x7f7eU, 0x8000U, 0xbf81U, 0x0080U, 0x007fU}) {
        for (const std::uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
            INFO(high << " " << low);
            const std::uint32_t up = low > 0x8000U || (low == 0x8000U && (high & 1U) != 0) ? 1 : 0;
            CHECK(round(high << 16 | low) == high + up);
        }
    }
    CHECK(round(0x7f7fffffU) == 0x7f80U);  // past the largest: infinity
    CHECK(round(0x7f800000U) == 0x7f80U);
    CHECK(round(0xff800000U) == 0xff80U);
    CHECK(round(0x7f800001U) == 0x7fc0U);  // a NaN whose bits all lie below
    CHECK(round(0xffffffffU) == 0xffffU);
}

TEST_CASE("dtypes that are no weights are refused by name") {
    const std::vector<std::byte> raw(8);
    std::vector<float> out(1);
    for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kF8E8M0, Dtype::kI64, Dtype::kI32, Dtype::kI16,
                              Dtype::kI8, Dtype::kU64, Dtype::kU32, Dtype::kU16, Dtype::kU8, Dtype::kBool}) {
        const std::string message =
            fenwick::testing::message_of<DataError>([&] { convert_to_f32(dtype, raw.data(), out, "layer.weight"); });
        CHECK_THAT(message, Contains("layer.weight") && Contains(std::string(dtype_name(dtype))));
        CHECK(parse_dtype(dtype_name(dtype)) == dtype);
    }
    CHECK_FALSE(parse_dtype("F4").has_value());
    CHECK_FALSE(parse_dtype("f32").has_value());
}

TEST_CASE("sizes of arrays never wrap") {
    const auto bytes = [](Dtype dtype, std::vector<std::int64_t> shape) { return array_bytes(dtype, shape); };
    CHECK(bytes(Dtype::kF32, {}) == 4);
    CHECK(bytes(Dtype::kBF16, {3, 0, 5}) == 0);
    CHECK(bytes(Dtype::kF64, {65536, 65536}) == std::int64_t{1} << 35);
    CHECK_FALSE(bytes(Dtype::kU8, {std::int64_t{1} << 33, std::int64_t{1} << 33}).has_value());
    CHECK_FALSE(bytes(Dtype::kF32, {std::int64_t{1} << 61}).has_value());
    CHECK_FALSE(bytes(Dtype::kF32, {-1, -4}).has_value());
    CHECK(shape_text(std::vector<std::int64_t>{4096, 128}) == "[4096, 128]");
    CHECK(shape_text({}) == "[]");
}
