#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "kernels/cuda/backward/column_sums.cuh"
#include "kernels/cuda/backward/embedding.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 256;

template <int kNone = 0>
__global__ void number_kernel(std::int32_t* numbers, std::int64_t count) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) numbers[i] = static_cast<std::int32_t>(i);
}

/// starts[id] for ids 0 to vocab: the first place in `sorted` whose id is not below it.
template <int kNone = 0>
__global__ void starts_kernel(const std::int32_t* sorted, std::int64_t count, std::int64_t vocab,
                              std::int32_t* starts) {
    const std::int64_t id = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (id > vocab) return;
    std::int64_t low = 0;
    while (count > 0) {
        const std::int64_t half = count / 2;
        if (sorted[low + half] < id) {
            low += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    starts[id] = static_cast<std::int32_t>(low);
}

/// A block adds the rows of one id, for kSumColumns columns; every kSumRows-th row a thread.
template <int kNone = 0>
__global__ void add_id_kernel(const std::int32_t* starts, const std::int32_t* sorted_rows, const float* dy,
                              std::int64_t hidden, float* d_table) {
    __shared__ float2 scratch[kSumRows][kSumColumns];
    const std::int64_t id = blockIdx.x;
    const std::int64_t first = starts[id];
    const std::int64_t last = starts[id + 1];
    if (first == last) return;  // all threads alike
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * kSumColumns + threadIdx.x;
    float2 sum = make_float2(0.0F, 0.0F);
    if (column < hidden) {
        for (std::int64_t i = first + threadIdx.y; i < last; i += kSumRows) {
            add_exactly(dy[sorted_rows[i] * hidden + column], sum);
        }
    }
    sum = add_row_threads(sum, scratch);
    if (threadIdx.y == 0 && column < hidden) d_table[id * hidden + column] += sum.x + sum.y;
}

std::size_t list_bytes(std::int64_t rows) {
    return static_cast<std::size_t>((rows * 4 + 255) / 256 * 256);
}

std::size_t sort_bytes(std::int64_t rows) {
    std::size_t bytes = 0;
    const std::int32_t* from = nullptr;
    std::int32_t* to = nullptr;
    FENWICK_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(nullptr, bytes, from, to, from, to, static_cast<int>(rows)));
    return bytes;
}

void require_rows(std::int64_t rows) {
    if (rows <= std::numeric_limits<std::int32_t>::max()) return;
    throw InternalError("embed_rows_backward: " + std::to_string(rows) + " rows, but rows are numbered in 32 bits");
}

}  // namespace

std::size_t embed_rows_backward_workspace_bytes(std::int64_t rows, std::int64_t vocab) {
    require_rows(rows);
    return 3 * list_bytes(rows) + list_bytes(vocab + 1) + (sort_bytes(rows) + 255) / 256 * 256;
}

void embed_rows_backward(float* d_table, const std::int32_t* ids, const float* dy, std::int64_t rows,
                         std::int64_t vocab, std::int64_t hidden, void* workspace, cudaStream_t stream) {
    require_rows(rows);
    if (rows == 0 || hidden == 0) return;
    auto* bytes = static_cast<unsigned char*>(workspace);
    auto* numbers = reinterpret_cast<std::int32_t*>(bytes);
    auto* sorted_ids = reinterpret_cast<std::int32_t*>(bytes + list_bytes(rows));
    auto* sorted_rows = reinterpret_cast<std::int32_t*>(bytes + 2 * list_bytes(rows));
    auto* starts = reinterpret_cast<std::int32_t*>(bytes + 3 * list_bytes(rows));
    unsigned char* scratch = bytes + 3 * list_bytes(rows) + list_bytes(vocab + 1);
    number_kernel<0><<<static_cast<unsigned>((rows + kThreads - 1) / kThreads), kThreads, 0, stream>>>(numbers, rows);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    // A stable sort: rows of one id stay in order.
    std::size_t temporary = sort_bytes(rows);
    FENWICK_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(scratch, temporary, ids, sorted_ids, numbers, sorted_rows,
                                                       static_cast<int>(rows), 0, 32, stream));
    starts_kernel<0>
        <<<static_cast<unsigned>(vocab / kThreads + 1), kThreads, 0, stream>>>(sorted_ids, rows, vocab, starts);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    const dim3 blocks(static_cast<unsigned>(vocab), static_cast<unsigned>((hidden + kSumColumns - 1) / kSumColumns));
    add_id_kernel<0><<<blocks, dim3(kSumColumns, kSumRows), 0, stream>>>(starts, sorted_rows, dy, hidden, d_table);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
