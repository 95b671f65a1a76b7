// Sums of columns over many rows: what the gradients of a layer's small parameters are.
//
// Every sum is kept as two floats, the sum and what its roundings lost (Knuth's two-sum, made a pair without overlap
// after every term), so that the error does not grow with the rows: with u = 2^-24, n terms a slice and terms that are
// exact, at most u |sum| + 2 n u^2 sum |terms|, of which the second part is below the first's u for n < 2^22. Rows are
// cut into at most kRowSlices slices that follow from their number alone; slices are added in order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/threads.h"

namespace fenwick {

inline constexpr std::int64_t kRowSlices = 16;

/// Adds `term` to the sum (high, low).
[[gnu::always_inline]] inline void add_exactly(float term, float& high, float& low) {
    const float sum = high + term;
    const float added = sum - high;
    const float lost = low + ((high - (sum - added)) + (term - added));
    high = sum + lost;
    low = lost - (high - sum);
}

/// The sums of one slice, one for each column.
struct ColumnSums {
    float* high = nullptr;
    float* low = nullptr;

    [[gnu::always_inline]] void add(std::int64_t column, float term) const {
        add_exactly(term, high[column], low[column]);
    }
};

[[nodiscard]] constexpr std::int64_t column_sums_floats(std::int64_t columns) {
    return 2 * kRowSlices * columns;
}

class SlicedColumnSums {
public:
    /// `workspace`: column_sums_floats(columns) floats.
    SlicedColumnSums(std::int64_t rows, std::int64_t columns, float* workspace)
        : rows_(rows), columns_(columns), slice_rows_((rows + kRowSlices - 1) / kRowSlices), workspace_(workspace) {}

    /// Runs task(first row, last row, sums) for every slice, its sums at zero before.
    template <class Task>
    void run(int threads, const Task& task) const {
        parallel_tasks(slices(), threads, [&](std::int64_t s, int) {
            const ColumnSums sums = slice(s);
            std::fill_n(sums.high, 2 * columns_, 0.0F);
            task(s * slice_rows_, std::min(rows_, (s + 1) * slice_rows_), sums);
        });
    }

    /// out[i] += the sum of column first + i, for `count` columns.
    void add_to(float* out, std::int64_t first, std::int64_t count) const {
        for (std::int64_t i = 0; i < count; ++i) {
            float high = 0.0F;
            float low = 0.0F;
            for (std::int64_t s = 0; s < slices(); ++s) {
                add_exactly(slice(s).high[first + i], high, low);
                low += slice(s).low[first + i];
            }
            out[i] += high + low;
        }
    }

private:
    [[nodiscard]] std::int64_t slices() const { return slice_rows_ == 0 ? 0 : (rows_ + slice_rows_ - 1) / slice_rows_; }
    [[nodiscard]] ColumnSums slice(std::int64_t s) const {
        float* high = workspace_ + 2 * s * columns_;
        return {high, high + columns_};
    }

    std::int64_t rows_, columns_, slice_rows_;
    float* workspace_;
};

}  // namespace fenwick
