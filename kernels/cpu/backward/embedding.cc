#include "kernels/backward/embedding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/errors.h"
#include "kernels/threads.h"

namespace fenwick {
namespace {

constexpr std::int64_t kRun = 4096;         // rows whose sums are formed before the table is touched
constexpr std::int64_t kColumnBlock = 128;  // columns of one task

/// A row of a run under its id: sorted, rows of one id follow each other in order.
constexpr std::uint64_t key_of(std::int32_t id, std::int64_t row) {
    return static_cast<std::uint64_t>(id) << 32U | static_cast<std::uint64_t>(row);
}

void add_run(MatrixView<float> d_table, const std::int32_t* ids, MatrixView<const float> dy) {
    std::array<std::uint64_t, kRun> keys;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    for (std::int64_t r = 0; r < dy.rows; ++r) keys[r] = key_of(ids[r], r);
    std::sort(keys.begin(), keys.begin() + dy.rows);
    std::array<double, kColumnBlock> sum{};
    for (std::int64_t i = 0; i < dy.rows;) {
        const std::uint64_t id = keys[i] >> 32U;
        sum.fill(0.0);
        for (; i < dy.rows && keys[i] >> 32U == id; ++i) {
            const float* row = dy.row(static_cast<std::int64_t>(keys[i] & 0xFFFFFFFFU));
            for (std::int64_t c = 0; c < dy.cols; ++c) sum[c] += static_cast<double>(row[c]);
        }
        float* out = d_table.row(static_cast<std::int64_t>(id));
        for (std::int64_t c = 0; c < dy.cols; ++c) out[c] = static_cast<float>(static_cast<double>(out[c]) + sum[c]);
    }
}

}  // namespace

void embed_rows_backward(MatrixView<float> d_table, const std::int32_t* ids, MatrixView<const float> dy, int threads) {
    if (d_table.cols != dy.cols) {
        throw InternalError(fmt::format("embed_rows_backward: rows of {} and {} values differ", d_table.cols, dy.cols));
    }
    for (std::int64_t t = 0; t < dy.rows; ++t) {
        if (ids[t] < 0 || ids[t] >= d_table.rows) {
            throw InternalError(
                fmt::format("embed_rows_backward: token id {} at row {} is outside [0, {})", ids[t], t, d_table.rows));
        }
    }
    parallel_tasks((dy.cols + kColumnBlock - 1) / kColumnBlock, threads, [&](std::int64_t block, int) {
        const std::int64_t first = block * kColumnBlock;
        const std::int64_t count = std::min(kColumnBlock, dy.cols - first);
        for (std::int64_t r = 0; r < dy.rows; r += kRun) {
            add_run(d_table.col_range(first, count), ids + r,
                    dy.row_range(r, std::min(kRun, dy.rows - r)).col_range(first, count));
        }
    });
}

}  // namespace fenwick
