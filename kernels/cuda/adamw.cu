#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/adamw.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kParts = 1024;  // blocks of a sum

template <int kNone = 0>
__global__ void adamw_kernel(AdamWFactors factors, float gradient_scale, AdamWRun run) {
    const auto step = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < run.size; i += step) {
        // Rounded where the CPU rounds: a product and a sum are fused only where it fuses them.
        const float g = __fmul_rn(gradient_scale, run.gradient[i]);
        const float m = fmaf(factors.beta1, run.first_moment[i], __fmul_rn(factors.rest1, g));
        const float v = fmaf(factors.beta2, run.second_moment[i], __fmul_rn(__fmul_rn(factors.rest2, g), g));
        run.first_moment[i] = m;
        run.second_moment[i] = v;
        const float root = __fadd_rn(sqrtf(__fmul_rn(v, factors.correction2)), factors.epsilon);
        const float move = __fmul_rn(factors.step_size, m) / root;
        const float value = run.values[i];
        run.values[i] = __fadd_rn(value, -fmaf(factors.decay, value, move));
    }
}

/// The sum of a block's values, in the order of its threads' pairs; scratch [kThreads].
__device__ inline double block_total(double value, double* scratch) {
    scratch[threadIdx.x] = value;
    for (int width = kThreads / 2; width > 0; width /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < width) scratch[threadIdx.x] += scratch[threadIdx.x + width];
    }
    __syncthreads();
    return scratch[0];
}

template <int kNone = 0>
__global__ void part_norm_kernel(const float* values, std::int64_t size, double* parts) {
    __shared__ double scratch[kThreads];
    double sum = 0.0;
    constexpr std::int64_t kStep = static_cast<std::int64_t>(kParts) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size; i += kStep) {
        const auto value = static_cast<double>(values[i]);
        sum += value * value;
    }
    sum = block_total(sum, scratch);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <int kNone = 0>
__global__ void total_norm_kernel(const double* parts, double* out) {
    __shared__ double scratch[kThreads];
    double sum = 0.0;
    for (int i = static_cast<int>(threadIdx.x); i < kParts; i += kThreads) sum += parts[i];
    sum = block_total(sum, scratch);
    if (threadIdx.x == 0) *out = sum;
}

}  // namespace

void adamw_step(const AdamW& hyper, std::int64_t step, float gradient_scale, const AdamWRun& run, cudaStream_t stream) {
    const AdamWFactors factors = adamw_factors(hyper, step, run.decayed);
    if (run.size == 0) return;
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((run.size + kThreads - 1) / kThreads, 1 << 16));
    adamw_kernel<0><<<blocks, kThreads, 0, stream>>>(factors, gradient_scale, run);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

std::size_t squared_norm_workspace_bytes() {
    return kParts * sizeof(double);
}

void squared_norm(const float* values, std::int64_t size, double* out, void* workspace, cudaStream_t stream) {
    auto* parts = static_cast<double*>(workspace);
    part_norm_kernel<0><<<kParts, kThreads, 0, stream>>>(values, size, parts);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    total_norm_kernel<0><<<1, kThreads, 0, stream>>>(parts, out);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
