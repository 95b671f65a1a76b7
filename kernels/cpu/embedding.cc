#include "kernels/embedding.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "kernels/threads.h"

namespace fenwick {

void embed_rows(MatrixView<const float> table, const std::int32_t* ids, MatrixView<float> out, int threads) {
    if (table.cols != out.cols) {
        throw InternalError(fmt::format("embed_rows: rows of {} and {} values differ", table.cols, out.cols));
    }
    for (std::int64_t t = 0; t < out.rows; ++t) {
        if (ids[t] < 0 || ids[t] >= table.rows) {
            throw InternalError(
                fmt::format("embed_rows: token id {} at row {} is outside [0, {})", ids[t], t, table.rows));
        }
    }
    parallel_rows(out.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t t = first; t < last; ++t) std::copy_n(table.row(ids[t]), table.cols, out.row(t));
    });
}

}  // namespace fenwick
