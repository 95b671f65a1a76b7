#include "kernels/activations.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "kernels/threads.h"
#include "kernels/vector_math.h"

namespace fenwick {

// Loops marked ivdep may run in place: output and input rows are the same row or apart, never shifted.

void swiglu(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> out, int threads) {
    if (gate.rows != up.rows || gate.cols != up.cols || gate.rows != out.rows || gate.cols != out.cols) {
        throw InternalError(fmt::format("swiglu: gate [{}, {}], up [{}, {}] and out [{}, {}] differ", gate.rows,
                                        gate.cols, up.rows, up.cols, out.rows, out.cols));
    }
    parallel_rows(out.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const float* g = gate.row(r);
            const float* u = up.row(r);
            float* o = out.row(r);
#pragma GCC ivdep
            for (std::int64_t c = 0; c < out.cols; ++c) o[c] = vsilu(g[c]) * u[c];
        }
    });
}

void silu_in_place(MatrixView<float> x, int threads) {
    parallel_rows(x.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            float* values = x.row(r);
            for (std::int64_t c = 0; c < x.cols; ++c) values[c] = vsilu(values[c]);
        }
    });
}

}  // namespace fenwick
