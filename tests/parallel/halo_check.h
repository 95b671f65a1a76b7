// The halo's index equations as a check that any world can run: rows are made from their numbers alone.
#pragma once

#include <algorithm>
#include <array>
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

/// Small integers: sums and products of them are exact. A function of the row and who asks.
inline float halo_integer(std::int64_t row, std::int64_t col, std::int64_t salt) {
    return static_cast<float>((row * 31 + col * 17 + salt * 101) % 23 - 11);
}

/// Runs one rank's part and returns what is wrong, or nothing. `products` gets this rank's part of <halo(x), y> and of
/// <x, halo_backward(y)>: their sums over the world are equal when nothing was carried in.
inline std::string check_halo_backward(Communicator& comm, const std::vector<std::int64_t>& rows_per_rank,
                                       int halo_rows, std::int64_t first_row, std::array<double, 2>& products) {
    const HaloPlan plan = plan_halo(rows_per_rank, halo_rows, first_row);
    std::vector<std::int64_t> starts{first_row};
    for (const std::int64_t rows : rows_per_rank) starts.push_back(starts.back() + rows);
    const auto me = static_cast<std::size_t>(comm.rank());
    const std::int64_t own_rows = rows_per_rank[me];
    const std::int64_t stride = kHaloCols + 2;
    const std::int64_t carried_rows = comm.rank() == 0 ? halo_rows : 0;

    Buffer<float> x(own_rows * stride);
    for (std::int64_t i = 0; i < x.size(); ++i) x[i] = halo_integer(starts[me] + i / stride, i % stride, 0);
    Buffer<float> y(halo_rows * kHaloCols);
    for (std::int64_t i = 0; i < y.size(); ++i) y[i] = halo_integer(i / kHaloCols, i % kHaloCols, comm.rank() + 1);
    Buffer<float> carried(carried_rows * kHaloCols);  // zeros: the carried rows are constants
    std::fill(carried.begin(), carried.end(), 0.0F);
    Buffer<float> carried_out(carried_rows * kHaloCols);
    Buffer<float> halo(halo_rows * kHaloCols);
    exchange_halo(plan, comm, {x.data(), own_rows, kHaloCols, stride}, carried.matrix(carried_rows, kHaloCols),
                  halo.matrix(halo_rows, kHaloCols), carried_out.matrix(carried_rows, kHaloCols));
    Buffer<float> d_own(own_rows * stride);
    std::fill(d_own.begin(), d_own.end(), 7.0F);  // added to; columns beside the view stay
    exchange_halo_backward(plan, comm, y.matrix(halo_rows, kHaloCols), {d_own.data(), own_rows, kHaloCols, stride});

    products = {0.0, 0.0};
    for (std::int64_t i = 0; i < halo.size(); ++i) products[0] += static_cast<double>(halo[i] * y[i]);
    for (std::int64_t i = 0; i < d_own.size(); ++i) {
        const std::int64_t row = starts[me] + i / stride;
        const std::int64_t col = i % stride;
        float expected = 7.0F;
        for (std::size_t rank = 0; rank < rows_per_rank.size() && col < kHaloCols; ++rank) {
            const std::int64_t in_halo = row - starts[rank] + halo_rows;
            if (rows_per_rank[rank] == 0 || in_halo < 0 || in_halo >= halo_rows) continue;
            expected += halo_integer(in_halo, col, static_cast<std::int64_t>(rank) + 1);
        }
        if (d_own[i] != expected) return "gradient of row " + std::to_string(row) + " is wrong";
        products[1] += static_cast<double>(x[i] * (d_own[i] - 7.0F));
    }
    return {};
}

}  // namespace fenwick::test
