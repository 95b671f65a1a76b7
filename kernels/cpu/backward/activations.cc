#include "kernels/backward/activations.h"

#include "kernels/cpu/backward/slopes.h"
#include "kernels/cpu/shapes.h"
#include "kernels/threads.h"

namespace fenwick {

void swiglu_backward(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<const float> dy,
                     MatrixView<float> d_gate, MatrixView<float> d_up, int threads) {
    for (const MatrixView<const float>& view :
         {up, dy, MatrixView<const float>(d_gate), MatrixView<const float>(d_up)}) {
        require_same_shape("swiglu_backward", gate, view);
    }
    parallel_rows(gate.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const float* g = gate.row(r);
            const float* u = up.row(r);
            const float* d = dy.row(r);
            float* out_gate = d_gate.row(r);
            float* out_up = d_up.row(r);
            // In place: rows are the same row or apart, never shifted.
#pragma GCC ivdep
            for (std::int64_t c = 0; c < gate.cols; ++c) {
                const float to_gate = d[c] * u[c] * silu_slope(g[c]);
                const float to_up = d[c] * vsilu(g[c]);
                out_gate[c] = to_gate;
                out_up[c] = to_up;
            }
        }
    });
}

}  // namespace fenwick
