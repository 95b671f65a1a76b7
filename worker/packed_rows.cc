#include "worker/packed_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>

#include "core/errors.h"
#include "core/fenwick.h"

namespace fenwick {
namespace {

/// log2 of the smallest power of two that is not below n.
int bits_of(std::int64_t n) {
    return std::bit_width(static_cast<std::uint64_t>(n - 1));
}

PackedRows pack_aligned(std::span<const std::int64_t> lengths) {
    std::vector<std::size_t> order(lengths.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
    PackedRows packed;
    packed.first_rows.resize(lengths.size());
    std::array<std::vector<std::int64_t>, 64> holes;  // of 2^i rows that start at multiples of that
    std::int64_t end = 0;                             // a multiple of every size still to come
    for (const std::size_t document : order) {
        const std::int64_t length = lengths[document];
        const int bits = bits_of(length);
        auto hole =
            std::find_if(holes.begin() + bits, holes.end(), [](const auto& of_size) { return !of_size.empty(); });
        std::int64_t first = end;
        std::int64_t size = std::int64_t{1} << bits;
        if (hole == holes.end()) {
            end += size;
        } else {
            first = hole->back();
            hole->pop_back();
            size = std::int64_t{1} << (hole - holes.begin());
        }
        packed.first_rows[document] = first;
        packed.rows = std::max(packed.rows, first + length);
        for (const Node& node : canonical_cover(first + length, first + size)) {
            holes[static_cast<std::size_t>(node.bit)].push_back(node.first_block());
        }
    }
    return packed;
}

}  // namespace

PackedRows pack_rows(std::span<const std::int64_t> lengths, bool log_linear) {
    for (const std::int64_t length : lengths) {
        if (length < 1) throw InternalError(fmt::format("packed rows: a document of {} tokens", length));
    }
    if (log_linear) return pack_aligned(lengths);
    PackedRows packed;
    for (const std::int64_t length : lengths) {
        packed.first_rows.push_back(packed.rows);
        packed.rows += length;
    }
    return packed;
}

std::vector<std::int32_t> positions_of(const PackedRows& packed, std::int64_t rows) {
    std::vector<std::int64_t> starts = packed.first_rows;
    std::sort(starts.begin(), starts.end());
    if (rows > 0 && (starts.empty() || starts.front() != 0)) {
        throw InternalError("packed rows: no document starts at row 0");
    }
    starts.push_back(rows);
    std::vector<std::int32_t> positions;
    positions.reserve(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
        const std::int64_t count = starts[i + 1] - starts[i];
        if (count < 0 || count - 1 > std::numeric_limits<std::int32_t>::max()) {
            throw InternalError(fmt::format("packed rows: {} rows from row {} on", count, starts[i]));
        }
        for (std::int64_t t = 0; t < count; ++t) positions.push_back(static_cast<std::int32_t>(t));
    }
    return positions;
}

}  // namespace fenwick
