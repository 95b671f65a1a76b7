#include "kernels/cuda/embedding.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 128;

template <class T, int kCount>
__global__ void embed_kernel(const T* table, const std::int32_t* ids, float* out, std::int64_t hidden) {
    const std::int64_t row = blockIdx.x;
    const T* from = table + static_cast<std::int64_t>(ids[row]) * hidden;
    float* to = out + row * hidden;
    for (std::int64_t c = threadIdx.x * kCount; c < hidden; c += kThreads * kCount) {
        store_values<kCount>(to + c, load_values<kCount>(from + c));
    }
}

}  // namespace

void embed_rows(Operand operand, const void* table, const std::int32_t* ids, float* out, std::int64_t rows,
                std::int64_t hidden, cudaStream_t stream) {
    if (rows == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = fours(table, hidden, sizeof(T)) && fours(out, hidden, sizeof(float));
        const auto kernel = wide ? embed_kernel<T, 4> : embed_kernel<T, 1>;
        kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(static_cast<const T*>(table), ids, out, hidden);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

}  // namespace fenwick::cuda
