// The log decays' share of the pairs that cross a whole chunk. For chunk w of a block, from the sums of scalar_rows
// (bits that are set) and scalar_gradients (bits that are clear, and the summaries' step):
//
//   bit b of w clear: pairs from earlier chunks of w's left run to its right run: the sum of theirs
//   bit b of w set:   pairs from the left run to later chunks of w's right run: the sum of what those read
//   states that enter the block: the sum of what later chunks read of them
//
// and, in the step of the block summaries, pairs from earlier chunks to later blocks, and those that cross the block.
#include "core/cuda/check.h"
#include "kernels/cuda/backward/scalar.h"

namespace fenwick::cuda::backward {
namespace {

// One thread block: one head of a block; a thread for each chunk, then all for the rows.
__global__ void crossings_kernel(const __grid_constant__ Scalar s, const float* d_summaries) {
    __shared__ float across[kChunks];
    const std::int64_t in_batch = blockIdx.x / static_cast<unsigned>(s.heads);
    const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(s.heads));
    const std::int64_t first = (s.batch_block + in_batch) * kBlockTokens;
    const auto rows = static_cast<int>(min(s.rows - first, kBlockTokens));
    const int chunks = (rows + kChunk - 1) / kChunk;
    const float* sums = s.sums + (in_batch * s.heads + head) * kChunks * kChunkSums;
    const int w = static_cast<int>(threadIdx.x);
    if (w < chunks) {
        float sum = 0.0F;
        if (d_summaries != nullptr) {
            for (int i = 0; i < w; ++i) sum += sums[i * kChunkSums];
            // Nothing is older than the document's first block.
            if (s.call.first_block + s.batch_block + in_batch != 0) {
                sum += d_summaries[((s.batch_block + in_batch) * s.heads + head) *
                                   (1 + static_cast<std::int64_t>(s.key_dim) * s.value_dim)];
            }
        } else {
            for (int bit = 0; bit < kRunBits; ++bit) {
                const int begin = w >> bit << bit;
                const int end = begin + (1 << bit);
                if ((w >> bit & 1) == 0) {
                    if (end >= chunks) continue;  // nobody reads the run
                    for (int i = begin; i < w; ++i) sum += sums[i * kChunkSums + bit];
                } else {
                    for (int i = min(end, chunks) - 1; i > w; --i) sum += sums[i * kChunkSums + bit];
                }
            }
            for (int i = chunks - 1; i > w; --i) sum += sums[i * kChunkSums + kRunBits];
        }
        across[w] = sum;
    }
    __syncthreads();
    const MixerGradients& g = s.call.gradients;
    for (int i = w; i < rows; i += static_cast<int>(blockDim.x)) {
        g.log_decay[(first + i) * g.decay_stride + head] += across[i / kChunk];
    }
}

}  // namespace

void launch_crossings(const Scalar& s, const float* d_summaries) {
    constexpr unsigned kThreads = 256;
    crossings_kernel<<<static_cast<unsigned>(s.batch_blocks * s.heads), kThreads, 0, s.call.stream>>>(s, d_summaries);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::backward
