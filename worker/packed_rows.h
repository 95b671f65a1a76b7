// Many documents behind each other, as rows that a mixer takes for one document's.
//
// Two tokens' level depends on the bits in which their numbers differ (DESIGN section 3). So a document of n tokens
// that starts at a row which is a multiple of a power of two p >= n has the levels there that it has by itself, and a
// log decay of -inf at its first token cuts off all that is older. With a linear read-out it may start anywhere.
//
// Padding: rows without a document, never more than the documents have tokens. Log-linear, a document takes p < 2 n
// rows, and what it leaves of them takes shorter documents: the longest are placed first, each into the smallest hole
// that holds it. Nothing is left where lengths are equal powers of two; all but half would be where all documents had
// one token more than that. Linear, there is none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fenwick {

struct PackedRows {
    std::vector<std::int64_t> first_rows;  ///< of each document, in the order in which they were given
    std::int64_t rows = 0;                 ///< up to the end of the last one
};

/// Places documents of `lengths` tokens. A function of its arguments alone. Throws InternalError for a length below 1.
[[nodiscard]] PackedRows pack_rows(std::span<const std::int64_t> lengths, bool log_linear);

/// [rows] of each row the position in the document that it belongs to, 0 where one starts; what follows a document
/// counts on. `rows` may be more than packed.rows. Throws InternalError when no document starts at row 0 or a position
/// does not fit 32 bits.
[[nodiscard]] std::vector<std::int32_t> positions_of(const PackedRows& packed, std::int64_t rows);

}  // namespace fenwick
