// The halo's index equations as a check that any world can run: rows are made from their numbers alone.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/halo.h"

namespace fenwick::test {

inline constexpr std::int64_t kHaloCols = 5;

/// Value of a document row's element; rows before the document are zero. Bit patterns include NaNs and negative zeros,
/// which only a bit-exact copy preserves.
inline std::uint32_t halo_bits(std::int64_t row, std::int64_t col) {
    if (row < 0) return 0;
    if (row % 7 == 3) return col % 2 == 0 ? 0x80000000U : 0x7fc12345U;
    return 0x3f800000U + static_cast<std::uint32_t>(row * kHaloCols + col);
}

inline Buffer<float> halo_rows_of(std::int64_t first, std::int64_t rows, std::int64_t stride) {
    Buffer<float> values(rows * stride);
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < stride; ++c) {
            values[r * stride + c] = std::bit_cast<float>(c < kHaloCols ? halo_bits(first + r, c) : 0xdeadbeefU);
        }
    }
    return values;
}

inline bool has_rows(const Buffer<float>& values, std::int64_t first, std::int64_t rows) {
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < kHaloCols; ++c) {
            if (std::bit_cast<std::uint32_t>(values[r * kHaloCols + c]) != halo_bits(first + r, c)) return false;
        }
    }
    return true;
}

/// Runs one rank's part and returns what is wrong, or nothing.
inline std::string check_halo(Communicator& comm, const std::vector<std::int64_t>& rows_per_rank, int halo_rows,
                              std::int64_t first_row) {
    const HaloPlan plan = plan_halo(rows_per_rank, halo_rows, first_row);
    std::int64_t start = first_row;
    for (int rank = 0; rank < comm.rank(); ++rank) start += rows_per_rank[static_cast<std::size_t>(rank)];
    std::int64_t end = first_row;
    for (const std::int64_t rows : rows_per_rank) end += rows;
    const std::int64_t own_rows = rows_per_rank[static_cast<std::size_t>(comm.rank())];
    const std::int64_t carried_rows = comm.rank() == 0 ? halo_rows : 0;

    const std::int64_t stride = kHaloCols + 3;  // a view into wider rows
    const Buffer<float> own = halo_rows_of(start, own_rows, stride);
    const Buffer<float> carried = halo_rows_of(first_row - halo_rows, carried_rows, kHaloCols);
    Buffer<float> halo(halo_rows * kHaloCols);
    Buffer<float> carried_out(carried_rows * kHaloCols);
    exchange_halo(plan, comm, {own.data(), own_rows, kHaloCols, stride}, carried.matrix(carried_rows, kHaloCols),
                  halo.matrix(halo_rows, kHaloCols), carried_out.matrix(carried_rows, kHaloCols));
    // A rank without rows gets none: rows "before the document" are the zeros that it must have.
    if (!has_rows(halo, own_rows > 0 ? start - halo_rows : -halo_rows, halo_rows)) return "halo of a rank is wrong";
    if (!has_rows(carried_out, end - halo_rows, carried_rows)) return "carried rows are wrong";
    return {};
}

}  // namespace fenwick::test
