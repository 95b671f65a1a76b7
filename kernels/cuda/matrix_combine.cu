// All nodes of one bit that a shard has to form, each from its two children, fp32 throughout. Every element is the
// chain that kernels/cuda/summary.h fixes, so a node has the same bits wherever it is formed.
#include "core/cuda/check.h"
#include "kernels/cuda/matrix_nodes.cuh"
#include "kernels/cuda/matrix_plan.h"

namespace fenwick::cuda::matrix {
namespace {

constexpr int kTile = 64;
constexpr int kDepth = 32;
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    combine(const Nodes nodes, int bit, int heads, int dk, int dv, int row_tiles, int column_tiles) {
    __shared__ float a[kDepth][kTile + 4];
    __shared__ float x[kDepth][kTile + 4];
    std::int64_t work = blockIdx.x;
    const int column_tile = static_cast<int>(work % column_tiles);
    work /= column_tiles;
    const int first_row = static_cast<int>(work % row_tiles) * kTile;
    work /= row_tiles;
    const int head = static_cast<int>(work % heads);
    const std::int64_t place = work / heads;
    const std::int64_t index = (nodes.first_block >> bit) + place;
    const std::int64_t at = static_cast<std::int64_t>(head) * dk * (dk + dv);
    const float* left = find_node(nodes, bit - 1, 2 * index) + at;
    const float* right = find_node(nodes, bit - 1, 2 * index + 1) + at;
    float* out = nodes.formed[bit] + place * nodes.layer + at;
    const int transition_tiles = (dk + kTile - 1) / kTile;
    const bool state = column_tile >= transition_tiles;
    const int columns = state ? dv : dk;
    const int part = state ? dk * dk : 0;
    const int first_column = (state ? column_tile - transition_tiles : column_tile) * kTile;
    const int tid = static_cast<int>(threadIdx.x);
    const int mine_row = tid / 16 * 4;
    const int mine_column = tid % 16 * 4;
    if (index == 0 && !state) {  // nothing is older than the document's first node: A = 0, as its blocks have it
        for (int i = tid; i < kTile * kTile; i += kThreads) {
            const int row = first_row + i / kTile;
            const int column = first_column + i % kTile;
            if (row < dk && column < dk) out[row * dk + column] = 0.0F;
        }
        return;
    }
    constexpr int kEach = kTile * kDepth / kThreads;
    float next_a[kEach];
    float next_x[kEach];
    const auto fetch = [&](int first) {  // into registers, while the last step is being multiplied
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const int i = tid + e * kThreads;
            const int row = first_row + i / kDepth;
            const int inner = first + i % kDepth;
            next_a[e] = row < dk && inner < dk ? right[row * dk + inner] : 0.0F;
            const int column = first_column + i % kTile;
            const int depth = first + i / kTile;
            next_x[e] = depth < dk && column < columns ? left[part + depth * columns + column] : 0.0F;
        }
    };
    fetch(0);
    float sum[4][4] = {};
    for (int first = 0; first < dk; first += kDepth) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const int i = tid + e * kThreads;
            a[i % kDepth][i / kDepth] = next_a[e];
            x[i / kTile][i % kTile] = next_x[e];
        }
        __syncthreads();
        if (first + kDepth < dk) fetch(first + kDepth);
        const int depth = min(kDepth, dk - first);
#pragma unroll 8
        for (int i = 0; i < depth; ++i) {
            const float4 l = *reinterpret_cast<const float4*>(&a[i][mine_row]);
            const float4 r = *reinterpret_cast<const float4*>(&x[i][mine_column]);
            const float rows[4] = {l.x, l.y, l.z, l.w};
            const float values[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
            for (int m = 0; m < 4; ++m) {
#pragma unroll
                for (int n = 0; n < 4; ++n) sum[m][n] = fmaf(rows[m], values[n], sum[m][n]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int row = first_row + mine_row + m;
            const int column = first_column + mine_column + n;
            if (row >= dk || column >= columns) continue;
            const int to = part + row * columns + column;
            out[to] = state ? right[to] + sum[m][n] : sum[m][n];
        }
    }
}

int tiles_of(std::int64_t size) {
    return static_cast<int>((size + kTile - 1) / kTile);
}

}  // namespace

void launch_combine(const MixerShape& shape, const Nodes& nodes, int bit, cudaStream_t stream) {
    const int row_tiles = tiles_of(shape.key_dim);
    const int column_tiles = row_tiles + tiles_of(shape.value_dim);
    const std::int64_t work =
        nodes_to_form(nodes, bit) * shape.heads * row_tiles * column_tiles;
    if (work == 0) return;
    combine<<<static_cast<unsigned>(work), kThreads, 0, stream>>>(
        nodes, bit, static_cast<int>(shape.heads), static_cast<int>(shape.key_dim), static_cast<int>(shape.value_dim),
        row_tiles, column_tiles);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::matrix
