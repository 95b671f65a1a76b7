// Rows that a shard needs from before its start (short convolutions look back W - 1 rows).
//
// Number the rows of the document from 0. The pass has rows [first_row, end_row); rank p owns [s_p, s_(p+1)), s_0 =
// first_row, in rank order; rank 0 also has the carried rows: the H = halo_rows rows before first_row. Then
//
//   halo_out(p)[i]   = row s_p - H + i                for every rank p that owns rows,  0 <= i < H
//   carried_out[i]   = row end_row - H + i            on rank 0
//
// and rows before the document's start are zero. A halo may come from several ranks and reach into the carried rows.
//
// Backward, the gradients of halo rows go back to the ranks that own the rows:
//
//   d_own_rows(p)[r - s_p] += sum over ranks q that own rows, s_q - H <= r < s_q, of d_halo(q)[r - s_q + H]
//
// for every row r of rank p's, ranks q in order. Carried rows are constants of the pass; before the document is
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "parallel/communicator.h"

namespace fenwick {

/// `rows` consecutive rows on their way from one rank to another (or within one).
struct HaloPiece {
    int from = 0;
    bool from_carried = false;    ///< source: rank 0's carried rows, else the rank's own rows
    std::int64_t source_row = 0;  ///< row of that source
    int to = 0;
    bool to_carried = false;      ///< target: rank 0's carried_out, else the rank's halo_out
    std::int64_t target_row = 0;  ///< row of that target
    std::int64_t rows = 0;
};

struct HaloPlan {
    std::vector<std::int64_t> rows_per_rank;  ///< [P]
    int halo_rows = 0;                        ///< H
    std::vector<HaloPiece> pieces;            ///< in the order of their messages between any two ranks
};

/// Pure. `first_row`: rows of the document before this pass. Throws InternalError for negative numbers or no ranks.
[[nodiscard]] HaloPlan plan_halo(std::span<const std::int64_t> rows_per_rank, int halo_rows, std::int64_t first_row);

/// Collective. `own_rows` [rows_per_rank[rank], cols]; `halo_out` [H, cols], on every rank, zeros where the plan gives
/// nothing; on rank 0 `carried` [H, cols] (rows before the document's start are not read) and `carried_out` [H, cols],
/// memory apart from `carried`; empty views elsewhere. Values are copied bit by bit.
/// Throws InternalError for views of another shape, UnavailableError when a peer failed.
void exchange_halo(const HaloPlan& plan, Communicator& comm, MatrixView<const float> own_rows,
                   MatrixView<const float> carried, MatrixView<float> halo_out, MatrixView<float> carried_out);

/// Collective, of exchange_halo with the same plan. `d_halo` [H, cols] on every rank (not read where the plan gives the
/// halo nothing), `d_own_rows` [rows_per_rank[rank], cols], added to in the order of the plan's pieces: the same bits
/// each time. Throws as exchange_halo.
void exchange_halo_backward(const HaloPlan& plan, Communicator& comm, MatrixView<const float> d_halo,
                            MatrixView<float> d_own_rows);

}  // namespace fenwick
