// Decays of runs of chunks, which carries are products of; and the log decays' share of the pairs that cross a whole
// chunk. For chunk w of a block, from the sums of diagonal_rows per channel:
//
//   bit b of w clear: pairs from earlier chunks of w's left run to its right run: the sum of theirs
//   bit b of w set:   pairs from the left run to later chunks of w's right run: the sum of what those read
//   states that enter the block: the sum of what later chunks read of them
//
// and, in the second step, pairs from earlier chunks to later blocks, and those that cross the block (dA).
#include "core/cuda/check.h"
#include "kernels/cuda/backward/diagonal.h"

namespace fenwick::cuda::backward {
namespace {

// A thread: a channel of a head of a block.
__global__ void runs_kernel(const __grid_constant__ Diagonal s) {
    const std::int64_t head_of_block = blockIdx.x;
    const std::int64_t in_batch = head_of_block / s.heads;
    const auto head = static_cast<int>(head_of_block % s.heads);
    const auto c = static_cast<int>(threadIdx.x);
    const std::int64_t first = (s.batch_block + in_batch) * kBlockTokens;
    const auto rows = static_cast<int>(min(s.rows - first, kBlockTokens));
    const int chunks = (rows + kChunk - 1) / kChunk;
    float* to = s.runs + head_of_block * kDiagonalRuns * s.key_dim + c;
    const float* from = s.prepared.decays + (in_batch * kChunks * s.heads + head) * s.key_dim + c;
#pragma unroll 8
    for (int i = 0; i < kChunks; ++i) {
        const std::int64_t at = static_cast<std::int64_t>(i) * s.heads * s.key_dim;
        to[i * s.key_dim] = i < chunks ? from[at] : 1.0F;
    }
    for (int bit = 1; bit < kChunkBits; ++bit) {
#pragma unroll 8
        for (int i = 0; i < kChunks >> bit; ++i) {
            to[run_place(bit, i) * s.key_dim] =
                to[run_place(bit - 1, 2 * i) * s.key_dim] * to[run_place(bit - 1, 2 * i + 1) * s.key_dim];
        }
    }
}

// One thread block: eight chunks of a head of a block, a thread for a channel.
constexpr int kChunksOfCrossing = 8;

__global__ void crossings_kernel(const __grid_constant__ Diagonal s, bool summaries) {
    constexpr unsigned kParts = kChunks / kChunksOfCrossing;
    const std::int64_t head_of_block = blockIdx.x / kParts;
    const std::int64_t in_batch = head_of_block / s.heads;
    const auto head = static_cast<int>(head_of_block % s.heads);
    const auto c = static_cast<int>(threadIdx.x);
    const std::int64_t first = (s.batch_block + in_batch) * kBlockTokens;
    const auto rows = static_cast<int>(min(s.rows - first, kBlockTokens));
    const int chunks = (rows + kChunk - 1) / kChunk;
    const float* sums = s.sums + head_of_block * kChunks * kDiagonalSums * s.key_dim + c;
    const auto sum_of = [&](int chunk, int which) { return sums[(chunk * kDiagonalSums + which) * s.key_dim]; };
    const auto begin = static_cast<int>(blockIdx.x % kParts) * kChunksOfCrossing;
    for (int w = begin; w < min(begin + kChunksOfCrossing, chunks); ++w) {
        float sum = 0.0F;
        if (summaries) {
#pragma unroll 8
            for (int i = 0; i < w; ++i) sum += sum_of(i, 0);
            // Nothing is older than the document's first block.
            if (s.call.first_block + s.batch_block + in_batch != 0) {
                sum +=
                    s.d_summaries[head_of_block * (s.key_dim + static_cast<std::int64_t>(s.key_dim) * s.value_dim) + c];
            }
        } else {
            for (int bit = 0; bit < kChunkBits; ++bit) {
                const int run = w >> bit << bit;
                const int end = run + (1 << bit);
                if ((w >> bit & 1) == 0) {
                    if (end >= chunks) continue;  // nobody reads the run
#pragma unroll 8
                    for (int i = run; i < w; ++i) sum += sum_of(i, bit);
                } else {
#pragma unroll 8
                    for (int i = min(end, chunks) - 1; i > w; --i) sum += sum_of(i, bit);
                }
            }
#pragma unroll 8
            for (int i = chunks - 1; i > w; --i) sum += sum_of(i, kChunkBits);
        }
        const MixerGradients& g = s.call.gradients;
        float* to =
            g.log_decay + (first + w * kChunk) * g.decay_stride + static_cast<std::int64_t>(head) * s.key_dim + c;
        const int own = min(rows - w * kChunk, kChunk);
#pragma unroll 8
        for (int i = 0; i < own; ++i) to[i * g.decay_stride] += sum;
    }
}

}  // namespace

void launch_diagonal_runs(const Diagonal& s) {
    runs_kernel<<<static_cast<unsigned>(s.batch_blocks * s.heads), static_cast<unsigned>(s.key_dim), 0,
                  s.call.stream>>>(s);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void launch_diagonal_crossings(const Diagonal& s, bool summaries) {
    crossings_kernel<<<static_cast<unsigned>(s.batch_blocks * s.heads * (kChunks / kChunksOfCrossing)),
                       static_cast<unsigned>(s.key_dim), 0, s.call.stream>>>(s, summaries);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::backward
