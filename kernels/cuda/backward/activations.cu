#include "kernels/cuda/backward/activations.h"
#include "kernels/cuda/backward/row_moments.cuh"
#include "kernels/cuda/backward/slopes.cuh"

namespace fenwick::cuda {
namespace {

template <class T, int kCount>
struct SwigluElement {
    SwigluBackward call;

    __device__ void operator()(std::int64_t row, std::int64_t c) const {
        const std::int64_t from = row * call.stride + c;
        const Values<kCount> g = load_values<kCount>(static_cast<const T*>(call.gate) + from);
        const Values<kCount> u = load_values<kCount>(static_cast<const T*>(call.up) + from);
        const Values<kCount> d = load_values<kCount>(static_cast<const T*>(call.dy) + row * call.y_stride + c);
        Values<kCount> to_gate;
        Values<kCount> to_up;
        Values<kCount> y;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const SiluPoint gate = silu_point(g.at[i]);
            to_gate.at[i] = d.at[i] * u.at[i] * gate.slope;
            to_up.at[i] = d.at[i] * gate.value;
            y.at[i] = gate.value * u.at[i];
        }
        store_values<kCount>(static_cast<T*>(call.d_gate) + row * call.d_stride + c, to_gate);
        store_values<kCount>(static_cast<T*>(call.d_up) + row * call.d_stride + c, to_up);
        if (call.y != nullptr) store_values<kCount>(static_cast<T*>(call.y) + row * call.y_stride + c, y);
    }
};

}  // namespace

void swiglu_backward(Operand operand, const SwigluBackward& call, cudaStream_t stream) {
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = call.columns % 4 == 0 && fours(call.gate, call.stride, sizeof(T)) &&
                          fours(call.up, call.stride, sizeof(T)) && fours(call.dy, call.y_stride, sizeof(T)) &&
                          fours(call.d_gate, call.d_stride, sizeof(T)) && fours(call.d_up, call.d_stride, sizeof(T)) &&
                          fours(call.y, call.y_stride, sizeof(T));
        if (wide) {
            for_row_elements<4>(SwigluElement<T, 4>{call}, call.rows, call.columns, stream);
        } else {
            for_row_elements<1>(SwigluElement<T, 1>{call}, call.rows, call.columns, stream);
        }
    });
}

}  // namespace fenwick::cuda
