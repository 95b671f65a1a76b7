#include "kernels/cuda/backward/column_sums.cuh"
#include "kernels/cuda/backward/gates.h"
#include "kernels/cuda/backward/slopes.cuh"

namespace fenwick::cuda {
namespace {

constexpr int kColumns = 64;  // threads along a row
constexpr int kRows = 4;      // rows of a block

/// element(row, column) for all of them.
template <class Element>
__global__ void gate_elements_kernel(Element element, std::int64_t rows, std::int64_t columns) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.y;
    if (row >= rows) return;
    for (std::int64_t c = threadIdx.x; c < columns; c += kColumns) element(row, c);
}

template <class Element>
void for_elements(const Element& element, std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
    if (rows == 0 || columns == 0) return;
    gate_elements_kernel<Element>
        <<<static_cast<unsigned>((rows + kRows - 1) / kRows), dim3(kColumns, kRows), 0, stream>>>(element, rows,
                                                                                                  columns);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

__device__ inline float at(const GateRows& rows, std::int64_t row, std::int64_t column) {
    return rows.data[row * rows.stride + column];
}

template <class T>
__device__ inline void put(const GateTarget& target, std::int64_t row, std::int64_t column, float value) {
    static_cast<T*>(target.data)[row * target.stride + column] = from_float<T>(value);
}

/// Of one gate's raw value (and of dt_bias), and of A_log.
struct GateGradient {
    float raw, a_log;
};

/// What the log decay 0 - rate * step passes on. Nothing from a decay of -inf; a NaN goes on.
struct DecayGradient {
    float to_step, to_a_log;
};
__device__ inline DecayGradient decay_gradient(float rate, float step, float d_log_decay) {
    const float decay = rate * step;
    const bool none = decay == INFINITY;
    return {none ? 0.0F : 0.0F - rate * d_log_decay, none ? 0.0F : 0.0F - decay * d_log_decay};
}

struct Mamba2Gradient {
    Mamba2Gates gates;
    GateRows raw, d_dt, d_log_decay;

    __device__ GateGradient of(std::int64_t row, std::int64_t h) const {
        const float sum = at(raw, row, h) + gates.dt_bias[h];
        const float open = softplus(sum);
        const float raised = open < gates.dt_min ? gates.dt_min : open;  // a NaN fails both comparisons
        const float step = raised > gates.dt_max ? gates.dt_max : raised;
        const DecayGradient decay = decay_gradient(expf(gates.a_log[h]), step, at(d_log_decay, row, h));
        const float passed = (at(d_dt, row, h) + decay.to_step) * sigmoid(sum);
        return {open < gates.dt_min || open > gates.dt_max ? 0.0F : passed, decay.to_a_log};
    }
};

struct DeltaGradient {
    DeltaGates gates;
    GateRows a, d_log_decay;

    __device__ GateGradient of(std::int64_t row, std::int64_t h) const {
        const float sum = at(a, row, h) + gates.dt_bias[h];
        const DecayGradient decay = decay_gradient(expf(gates.a_log[h]), softplus(sum), at(d_log_decay, row, h));
        return {decay.to_step * sigmoid(sum), decay.to_a_log};
    }
};

template <class Gradient>
struct GateTerm {
    Gradient gradient;

    __device__ void operator()(std::int64_t row, std::int64_t h, float* terms) const {
        const GateGradient one = gradient.of(row, h);
        terms[0] = one.raw;
        terms[1] = one.a_log;
    }
};

template <class T, class Gradient>
struct GateElement {
    Gradient gradient;
    GateTarget d_raw;

    __device__ void operator()(std::int64_t row, std::int64_t h) const {
        put<T>(d_raw, row, h, gradient.of(row, h).raw);
    }
};

template <class T>
struct BetaElement {
    GateRows b, d_beta;
    GateTarget d_b;
    float beta_scale;

    __device__ void operator()(std::int64_t row, std::int64_t h) const {
        put<T>(d_b, row, h, at(d_beta, row, h) * (beta_scale * sigmoid_slope(at(b, row, h))));
    }
};

struct LevelTerm {
    const float* scale;
    GateRows dl, d_lambda;

    __device__ void operator()(std::int64_t row, std::int64_t c, float* terms) const {
        const float x = at(dl, row, c);
        terms[0] = at(d_lambda, row, c) * sigmoid(scale[c] * x) * x;
    }
};

template <class T>
struct LevelElement {
    const float* scale;
    GateRows dl, d_lambda;
    GateTarget d_dl;

    __device__ void operator()(std::int64_t row, std::int64_t c) const {
        put<T>(d_dl, row, c, at(d_lambda, row, c) * sigmoid(scale[c] * at(dl, row, c)) * scale[c]);
    }
};

template <class T, class Gradient>
void run_gate(const Gradient& gradient, GateTarget d_raw, float* d_dt_bias, float* d_a_log, std::int64_t rows,
              std::int64_t heads, void* workspace, cudaStream_t stream) {
    sum_columns<2>(GateTerm<Gradient>{gradient}, rows, heads, workspace, stream);
    add_sums(workspace, rows, 2 * heads, {d_dt_bias, heads, 0, 1, 2}, stream);
    add_sums(workspace, rows, 2 * heads, {d_a_log, heads, 1, 1, 2}, stream);
    for_elements(GateElement<T, Gradient>{gradient, d_raw}, rows, heads, stream);
}

/// One warp a head of a row.
template <class T>
__global__ void scale_heads_kernel(ScaleHeadsBackward call) {
    const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (task >= call.rows * call.heads) return;
    const std::int64_t row = task / call.heads;
    const std::int64_t head = task % call.heads;
    const float factor = call.factor[row * call.factor_stride + head];
    const T* x = static_cast<const T*>(call.x) + row * call.x_stride + head * call.head_dim;
    const float* d_v = call.d_v + row * call.d_v_stride + head * call.head_dim;
    float* d_x = call.d_x + row * call.d_x_stride + head * call.head_dim;
    float sum = 0.0F;
    for (std::int64_t i = threadIdx.x; i < call.head_dim; i += 32) {
        const float d = d_v[i];
        sum = fmaf(d, to_float(x[i]), sum);
        d_x[i] = call.accumulate ? fmaf(d, factor, d_x[i]) : d * factor;
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
    if (threadIdx.x == 0) call.d_factor[row * call.d_factor_stride + head] = sum;
}

}  // namespace

std::size_t gates_backward_workspace_bytes(std::int64_t heads) {
    return column_sums_bytes(2 * heads);
}

void mamba2_gates_backward(Operand operand, const Mamba2Gates& gates, GateRows raw, GateRows d_dt, GateRows d_log_decay,
                           GateTarget d_raw, float* d_dt_bias, float* d_a_log, std::int64_t rows, std::int64_t heads,
                           void* workspace, cudaStream_t stream) {
    with_operand(operand, [&](auto tag) {
        run_gate<typename decltype(tag)::Type>(Mamba2Gradient{gates, raw, d_dt, d_log_decay}, d_raw, d_dt_bias, d_a_log,
                                               rows, heads, workspace, stream);
    });
}

void delta_gates_backward(Operand operand, const DeltaGates& gates, GateRows a, GateRows b, GateRows d_log_decay,
                          GateRows d_beta, GateTarget d_a, GateTarget d_b, float* d_dt_bias, float* d_a_log,
                          std::int64_t rows, std::int64_t heads, void* workspace, cudaStream_t stream) {
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        run_gate<T>(DeltaGradient{gates, a, d_log_decay}, d_a, d_dt_bias, d_a_log, rows, heads, workspace, stream);
        const float beta_scale = gates.allow_negative_eigenvalues ? 2.0F : 1.0F;
        for_elements(BetaElement<T>{b, d_beta, d_b, beta_scale}, rows, heads, stream);
    });
}

void level_scales_backward(Operand operand, const float* scale, GateRows dl, GateRows d_lambda, GateTarget d_dl,
                           float* d_scale, std::int64_t rows, std::int64_t columns, void* workspace,
                           cudaStream_t stream) {
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        sum_columns<1>(LevelTerm{scale, dl, d_lambda}, rows, columns, workspace, stream);
        add_sums(workspace, rows, columns, {d_scale, columns}, stream);
        for_elements(LevelElement<T>{scale, dl, d_lambda, d_dl}, rows, columns, stream);
    });
}

void scale_heads_backward(Operand operand, const ScaleHeadsBackward& call, cudaStream_t stream) {
    if (call.rows == 0 || call.heads == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const auto blocks = static_cast<unsigned>((call.rows * call.heads + kRows - 1) / kRows);
        scale_heads_kernel<T><<<blocks, dim3(32, kRows), 0, stream>>>(call);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

}  // namespace fenwick::cuda
