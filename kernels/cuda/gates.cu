#include "kernels/cuda/gates.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

constexpr int kColumns = 64;  // threads along a row
constexpr int kRows = 4;      // rows of a block

unsigned blocks_for(std::int64_t rows) {
    return static_cast<unsigned>((rows + kRows - 1) / kRows);
}

__device__ std::int64_t row_of_thread() {
    return static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.y;
}

__global__ void mamba2_kernel(Mamba2Gates gates, float* raw, std::int64_t stride, float* log_decay, std::int64_t rows,
                              std::int64_t heads) {
    const std::int64_t row = row_of_thread();
    if (row >= rows) return;
    for (std::int64_t h = threadIdx.x; h < heads; h += kColumns) {
        float* at = raw + row * stride + h;
        const float open = softplus(*at + gates.dt_bias[h]);
        const float raised = open < gates.dt_min ? gates.dt_min : open;  // a NaN fails both comparisons
        const float dt = raised > gates.dt_max ? gates.dt_max : raised;
        *at = dt;
        log_decay[row * heads + h] = 0.0F - expf(gates.a_log[h]) * dt;
    }
}

__global__ void delta_kernel(DeltaGates gates, float* a, float* b, std::int64_t stride, std::int64_t rows,
                             std::int64_t heads) {
    const std::int64_t row = row_of_thread();
    if (row >= rows) return;
    for (std::int64_t h = threadIdx.x; h < heads; h += kColumns) {
        const std::int64_t at = row * stride + h;
        a[at] = 0.0F - expf(gates.a_log[h]) * softplus(a[at] + gates.dt_bias[h]);
        b[at] = (gates.allow_negative_eigenvalues ? 2.0F : 1.0F) * sigmoid(b[at]);
    }
}

__global__ void cut_kernel(const std::int32_t* positions, float* log_decay, std::int64_t stride, std::int64_t rows,
                           std::int64_t heads) {
    const std::int64_t row = row_of_thread();
    if (row >= rows || positions[row] != 0) return;
    for (std::int64_t h = threadIdx.x; h < heads; h += kColumns) log_decay[row * stride + h] = -INFINITY;
}

template <int kCount>
__global__ void level_kernel(const float* scale, float* dl, std::int64_t stride, std::int64_t rows, int columns) {
    const std::int64_t row = row_of_thread();
    if (row >= rows) return;
    float* at = dl + row * stride;
    for (int c = static_cast<int>(threadIdx.x) * kCount; c < columns; c += kColumns * kCount) {
        Values<kCount> values = load_values<kCount>(at + c);
        const Values<kCount> factors = load_values<kCount>(scale + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) values.at[i] = softplus(factors.at[i] * values.at[i]);
        store_values<kCount>(at + c, values);
    }
}

}  // namespace

void mamba2_gates(const Mamba2Gates& gates, float* raw, std::int64_t raw_stride, float* log_decay, std::int64_t rows,
                  std::int64_t heads, cudaStream_t stream) {
    if (rows == 0) return;
    mamba2_kernel<<<blocks_for(rows), dim3(kColumns, kRows), 0, stream>>>(gates, raw, raw_stride, log_decay, rows,
                                                                          heads);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void delta_gates(const DeltaGates& gates, float* a, float* b, std::int64_t stride, std::int64_t rows,
                 std::int64_t heads, cudaStream_t stream) {
    if (rows == 0) return;
    delta_kernel<<<blocks_for(rows), dim3(kColumns, kRows), 0, stream>>>(gates, a, b, stride, rows, heads);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void level_scales(const float* scale, float* dl, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                  cudaStream_t stream) {
    if (rows == 0) return;
    const bool wide = columns % 4 == 0 && fours(dl, stride, sizeof(float)) && fours(scale, 0, sizeof(float));
    const auto kernel = wide ? level_kernel<4> : level_kernel<1>;
    kernel<<<blocks_for(rows), dim3(kColumns, kRows), 0, stream>>>(scale, dl, stride, rows, static_cast<int>(columns));
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void cut_log_decays(const std::int32_t* positions, float* log_decay, std::int64_t stride, std::int64_t rows,
                    std::int64_t heads, cudaStream_t stream) {
    if (rows == 0) return;
    cut_kernel<<<blocks_for(rows), dim3(kColumns, kRows), 0, stream>>>(positions, log_decay, stride, rows, heads);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
