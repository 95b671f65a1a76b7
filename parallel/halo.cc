#include "parallel/halo.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/errors.h"

namespace fenwick {
namespace {

void check_shape(const char* name, const MatrixView<const float>& view, std::int64_t rows, std::int64_t cols) {
    if (view.rows == rows && (rows == 0 || view.cols == cols)) return;
    throw InternalError(
        fmt::format("halo: {}: expected [{}, {}], found [{}, {}]", name, rows, cols, view.rows, view.cols));
}

void add_rows(const MatrixView<const float>& from, const MatrixView<float>& to) {
    for (std::int64_t r = 0; r < from.rows; ++r) {
        for (std::int64_t c = 0; c < from.cols; ++c) to.row(r)[c] += from.row(r)[c];
    }
}

void check_world(const HaloPlan& plan, const Communicator& comm) {
    if (plan.rows_per_rank.size() == static_cast<std::size_t>(comm.size())) return;
    throw InternalError(
        fmt::format("halo: the plan is for {} ranks, the world has {}", plan.rows_per_rank.size(), comm.size()));
}

/// Rows [first, first + H) for one target, cut where their owner changes. `starts` [P + 1]: first row of each rank.
void plan_target(HaloPlan& plan, const std::vector<std::int64_t>& starts, std::int64_t first, int to, bool to_carried) {
    const std::int64_t end = first + plan.halo_rows;
    const std::int64_t carried_first = std::max<std::int64_t>(starts.front() - plan.halo_rows, 0);
    const auto take = [&](int from, bool from_carried, std::int64_t source_first, std::int64_t source_end,
                          std::int64_t source_zero) {
        const std::int64_t begin = std::max(first, source_first);
        const std::int64_t stop = std::min(end, source_end);
        if (begin < stop) {
            plan.pieces.push_back(
                {from, from_carried, begin - source_zero, to, to_carried, begin - first, stop - begin});
        }
    };
    take(0, true, carried_first, starts.front(), starts.front() - plan.halo_rows);
    // The owners of the last rows before `end`: walk back from there, so that a plan costs what it contains.
    auto owner = std::lower_bound(starts.begin() + 1, starts.end(), end) - starts.begin() - 1;
    while (owner > 0 && starts[static_cast<std::size_t>(owner)] > first) --owner;
    for (auto rank = static_cast<std::size_t>(owner); rank + 1 < starts.size() && starts[rank] < end; ++rank) {
        take(static_cast<int>(rank), false, starts[rank], starts[rank + 1], starts[rank]);
    }
}

}  // namespace

HaloPlan plan_halo(std::span<const std::int64_t> rows_per_rank, int halo_rows, std::int64_t first_row) {
    if (rows_per_rank.empty() || halo_rows < 0 || first_row < 0) {
        throw InternalError(
            fmt::format("halo plan: {} ranks, {} halo rows, first row {}", rows_per_rank.size(), halo_rows, first_row));
    }
    HaloPlan plan{{rows_per_rank.begin(), rows_per_rank.end()}, halo_rows, {}};
    std::vector<std::int64_t> starts(1, first_row);
    for (const std::int64_t rows : rows_per_rank) {
        if (rows < 0) throw InternalError(fmt::format("halo plan: a rank with {} rows", rows));
        starts.push_back(starts.back() + rows);
    }
    for (std::size_t rank = 0; rank < rows_per_rank.size(); ++rank) {
        if (rows_per_rank[rank] == 0) continue;
        plan_target(plan, starts, starts[rank] - halo_rows, static_cast<int>(rank), false);
    }
    plan_target(plan, starts, starts.back() - halo_rows, 0, true);
    return plan;
}

void exchange_halo(const HaloPlan& plan, Communicator& comm, MatrixView<const float> own_rows,
                   MatrixView<const float> carried, MatrixView<float> halo_out, MatrixView<float> carried_out) {
    const int me = comm.rank();
    check_world(plan, comm);
    const std::int64_t cols = halo_out.cols;
    check_shape("own_rows", own_rows, plan.rows_per_rank[static_cast<std::size_t>(me)], cols);
    check_shape("halo_out", halo_out, plan.halo_rows, cols);
    check_shape("carried", carried, me == 0 ? plan.halo_rows : 0, cols);
    check_shape("carried_out", carried_out, me == 0 ? plan.halo_rows : 0, cols);

    zero_rows(halo_out);
    zero_rows(carried_out);
    std::vector<Buffer<float>> buffers;
    std::vector<SendOp> sends;
    std::vector<RecvOp> recvs;
    std::vector<std::pair<MatrixView<const float>, MatrixView<float>>> arrived;  // message buffer, its place
    for (const HaloPiece& piece : plan.pieces) {
        if (piece.from != me && piece.to != me) continue;
        MatrixView<const float> source;
        MatrixView<float> target;
        if (piece.from == me)
            source = (piece.from_carried ? carried : own_rows).row_range(piece.source_row, piece.rows);
        if (piece.to == me)
            target = (piece.to_carried ? carried_out : halo_out).row_range(piece.target_row, piece.rows);
        if (piece.from == piece.to) {
            copy_rows(source, target);
            continue;
        }
        Buffer<float>& buffer = buffers.emplace_back(piece.rows * cols);
        const std::span<float> packed(buffer.data(), static_cast<std::size_t>(buffer.size()));
        if (piece.from == me) {
            copy_rows(source, buffer.matrix(piece.rows, cols));
            sends.push_back({piece.to, std::as_bytes(packed)});
        } else {
            arrived.emplace_back(buffer.matrix(piece.rows, cols), target);
            recvs.push_back({piece.from, std::as_writable_bytes(packed)});
        }
    }
    comm.exchange(sends, recvs);
    for (const auto& [message, place] : arrived) copy_rows(message, place);
}

void exchange_halo_backward(const HaloPlan& plan, Communicator& comm, MatrixView<const float> d_halo,
                            MatrixView<float> d_own_rows) {
    const int me = comm.rank();
    check_world(plan, comm);
    const std::int64_t cols = d_halo.cols;
    check_shape("d_halo", d_halo, plan.halo_rows, cols);
    check_shape("d_own_rows", d_own_rows, plan.rows_per_rank[static_cast<std::size_t>(me)], cols);

    std::vector<Buffer<float>> buffers;
    std::vector<SendOp> sends;
    std::vector<RecvOp> recvs;
    std::vector<std::pair<MatrixView<const float>, MatrixView<float>>> arrived;  // message buffer, where it is added
    for (const HaloPiece& piece : plan.pieces) {
        // No rank's halo has rows of its own: a piece within a rank comes from the carried rows, or is carried on.
        if (piece.from_carried || piece.to_carried || (piece.from != me && piece.to != me)) continue;
        Buffer<float>& buffer = buffers.emplace_back(piece.rows * cols);
        const std::span<float> packed(buffer.data(), static_cast<std::size_t>(buffer.size()));
        if (piece.to == me) {
            copy_rows(d_halo.row_range(piece.target_row, piece.rows), buffer.matrix(piece.rows, cols));
            sends.push_back({piece.from, std::as_bytes(packed)});
        } else {
            arrived.emplace_back(buffer.matrix(piece.rows, cols), d_own_rows.row_range(piece.source_row, piece.rows));
            recvs.push_back({piece.to, std::as_writable_bytes(packed)});
        }
    }
    comm.exchange(sends, recvs);
    for (const auto& [message, place] : arrived) add_rows(message, place);
}

}  // namespace fenwick
