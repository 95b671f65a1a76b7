// What the kernels of matrix_rows.cu keep in shared memory, and the chunk's own scores.
#pragma once

#include "kernels/cuda/backward/matrix_pairs.cuh"
#include "kernels/cuda/backward/matrix_walk.cuh"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/matrix_tile.cuh"

namespace fenwick::cuda::backward {

inline constexpr int kPitch = kChunk + 1;

/// Of which step's walks a kernel forms the gradients.
enum class MatrixForm { kOutputs, kSummaries };

template <int kPanels, MatrixForm kForm>
struct MatrixShared {
    static constexpr int kLambdas = kForm == MatrixForm::kOutputs ? kOwnLevels + kMatrixMostWalks : 1;
    static constexpr int kScores = kForm == MatrixForm::kOutputs ? kChunk * kChunk : 1;
    static constexpr int kDots = kForm == MatrixForm::kOutputs ? kMatrixMostWalks : 1;
    float pairs[kChunk * kPitch];         // dU V^T; then [i][j]: what a pair adds, fp32
    float scores[kScores];                // dO V^T
    float dots[kPanels][kDots * kChunk];  // Q~ X dO by walk that is read
    float lambda[kLambdas * kChunk];      // [level inside the chunk, then walk][row]
    float by_row[3][kPanels][kChunk];     // incoming, outgoing, beta
    float inside[kChunk];                 // pairs in the chunk that cross a token
    alignas(16) float decays[kDecayFloats];
    float across[4 * kPanels];
    MatrixWalk walks[kMatrixMostWalks];
    int numbers[kMatrixMostWalks];  // of the walks that take the chunk
    int count;
};

template <int kKeyDim, MatrixForm kForm>
struct MatrixTiles {
    static constexpr bool kSummaries = kForm == MatrixForm::kSummaries;  // has no Q, Q~ and S
    static constexpr int kPanels = kKeyDim / 64;
    static constexpr int kThreads = 128 * kPanels;
    static constexpr int kKeyBytes = kPanels * kPanelBytes;
    static constexpr int kQ = 0;
    static constexpr int kK = kQ + (kSummaries ? 0 : kKeyBytes);
    static constexpr int kReads = kK + kKeyBytes;
    static constexpr int kRemoves = kReads + (kForm == MatrixForm::kOutputs ? kKeyBytes : 0);  // Q~: for lambda's alone
    static constexpr int kM = kRemoves + kKeyBytes;
    static constexpr int kS = kM + kPanelBytes;
    static constexpr int kL = kS + (kSummaries ? 0 : kPanelBytes);
    static constexpr int kP = kL + kPanelBytes;
    static constexpr int kWeighed = kP + kPanelBytes;       // P * Lambda
    static constexpr int kX = kWeighed + kPanelBytes;       // then gradients of lambda, then dQ~
    static constexpr int kDX = kX + kKeyBytes;              // then dW
    static constexpr int kValues = kDX + kKeyBytes;         // Z, dU; then dP, then dL * D
    static constexpr int kDValues = kValues + kPanelBytes;  // dZ, then dM
    static constexpr int kD = kDValues + kPanelBytes;       // dO, then R
    static constexpr int kV = kD + kPanelBytes;             // then dS * D
    static constexpr int kShared = kV + kPanelBytes;
    static constexpr int kBytes = 1024 + kShared + static_cast<int>(sizeof(MatrixShared<kPanels, kForm>));
};
static_assert(MatrixTiles<128, MatrixForm::kOutputs>::kBytes <= 227 * 1024);

/// Lambda of a pair's level, 0 right of the diagonal.
template <int kPanels>
__device__ __forceinline__ float pair_lambda(const MatrixShared<kPanels, MatrixForm::kOutputs>& shared, int row,
                                             int column) {
    const int level = row == column ? 0 : 32 - __clz(row ^ column);
    return column <= row ? shared.lambda[level * kChunk + row] : 0.0F;
}

/// Places of a warp's share of a 64 x 64 product: 16 rows, 64 / panels columns. Place i (even) of its sums has elements
/// (row, column) and (row, column + 1).
template <int kKeyDim>
struct OwnPlaces {
    char* tiles;
    int t;
    static constexpr int kOwn = 64 * 64 / kKeyDim;
    __device__ __forceinline__ int row(int i) const { return t / 32 % 4 * 16 + t % 32 / 4 + (i & 2) * 4; }
    __device__ __forceinline__ int column(int i) const { return t / 128 * kOwn + i / 4 * 8 + t % 4 * 2; }
    /// Two neighbouring elements of a tile.
    __device__ __forceinline__ std::uint32_t* pair(int tile, int r, int column) const {
        return reinterpret_cast<std::uint32_t*>(tiles + tile + tile_offset(r, column / 8) + column % 8 * 2);
    }
};

/// D = exp(G_i - G_j) of a thread's own places, 0 right of the diagonal.
template <int kKeyDim, MatrixForm kForm>
__device__ __forceinline__ void own_decays(const MatrixShared<kKeyDim / 64, kForm>& shared,
                                           const OwnPlaces<kKeyDim>& places,
                                           float (&decays)[OwnPlaces<kKeyDim>::kOwn / 2]) {
    const float2* logs = ChunkDecays{shared.decays}.logs();
    const float2 at[2] = {logs[places.row(0)], logs[places.row(2)]};
#pragma unroll
    for (int i = 0; i < OwnPlaces<kKeyDim>::kOwn / 2; i += 4) {
        const int column = places.column(i);
        const float4 from = *reinterpret_cast<const float4*>(logs + column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = places.row(2 * half);
            const float first = exp2_fast((at[half].x - from.x) + (at[half].y - from.y));
            const float second = exp2_fast((at[half].x - from.z) + (at[half].y - from.w));
            decays[i + 2 * half] = column <= r ? first : 0.0F;
            decays[i + 2 * half + 1] = column < r ? second : 0.0F;
        }
    }
}

/// A thread's own places of a tile of dV.
template <int kKeyDim>
__device__ __forceinline__ void put_value_gradients(const Matrix& m, const MatrixChunk& c,
                                                    const OwnPlaces<kKeyDim>& places,
                                                    const float (&d_v)[OwnPlaces<kKeyDim>::kOwn / 2], int tile,
                                                    bool added) {
    const MixerGradients& g = m.call.gradients;
    const int row = places.row(0);
    const int column = tile * 64 + places.column(0);
    float* const first = g.v + (c.first + row) * g.v_stride + static_cast<std::int64_t>(c.head) * m.value_dim + column;
    float* const rows[2] = {row < c.rows ? first : nullptr, row + 8 < c.rows ? first + 8 * g.v_stride : nullptr};
    put_pairs(d_v, rows, (m.value_dim - column + 7) / 8, added);
}

/// L, and of S and M, P and P * Lambda as tiles (of the summaries' step: L alone); there after another barrier. All
/// threads.
template <int kKeyDim, MatrixForm kForm>
__device__ __forceinline__ void form_scores(const MatrixShared<kKeyDim / 64, kForm>& shared,
                                            const OwnPlaces<kKeyDim>& places, std::uint32_t start) {
    using C = MatrixTiles<kKeyDim, kForm>;
    constexpr int kOwn = OwnPlaces<kKeyDim>::kOwn;
    const int lane = places.t % 32;
    const int warp = places.t / 32 % 4;
    const int first = places.t / 128 * kOwn;
    float kk[kOwn / 2] = {};
#pragma unroll
    for (int i = 0; i < C::kPanels; ++i) {
        const std::uint32_t keys = start + C::kK + i * kPanelBytes;
        multiply_tiles<kOwn, Rows::kColumns, false>(kk, keys, keys, first, warp, lane);
    }
    float decays[kOwn / 2];
    own_decays<kKeyDim, kForm>(shared, places, decays);
#pragma unroll
    for (int i = 0; i < kOwn / 2; i += 2) {
        const int r = places.row(i);
        const int column = places.column(i);
        const float2 beta = *reinterpret_cast<const float2*>(ChunkDecays{shared.decays}.beta() + column);
        *places.pair(C::kL, r, column) = pack_bf16(column < r ? kk[i] * decays[i] * beta.x : 0.0F,
                                                   column + 1 < r ? kk[i + 1] * decays[i + 1] * beta.y : 0.0F);
    }
    if constexpr (kForm != MatrixForm::kSummaries) {
        float p[kOwn / 2] = {};
        multiply_tiles<kOwn, Rows::kDepth, false>(p, start + C::kS, start + C::kM, first, warp, lane);
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            const int r = places.row(i);
            const int column = places.column(i);
            *places.pair(C::kP, r, column) = pack_bf16(p[i], p[i + 1]);
            *places.pair(C::kWeighed, r, column) =
                pack_bf16(p[i] * pair_lambda(shared, r, column), p[i + 1] * pair_lambda(shared, r, column + 1));
        }
    }
}

/// The walks that take the chunk, decays and lambda. All threads; `count` may be read, the rest after another barrier.
template <int kKeyDim, MatrixForm kForm>
__device__ __forceinline__ void fill_shared(const Matrix& m, const MatrixChunk& c,
                                            MatrixShared<kKeyDim / 64, kForm>& shared, int t) {
    constexpr int kThreads = MatrixTiles<kKeyDim, kForm>::kThreads;
    static_assert(kMatrixMostWalks <= 32);
    if (t < 32) {  // a walk a lane
        MatrixWalk walk{};
        if (t < m.walks) walk = walk_of(m, t, c.in_batch, c.head);
        const bool takes = walk.there && walk.takes(c.chunk, c.chunks);
        const unsigned taking = __ballot_sync(0xffffffffU, takes);
        if (takes) {
            const int place = __popc(taking & ((1U << t) - 1U));
            shared.numbers[place] = t;
            shared.walks[place] = walk;
        }
        if (t == 0) shared.count = __popc(taking);
    }
    const float* until = m.prepared.decays + c.place * 2 * kChunk;
    const float* gates = m.prepared.gates + c.place * 4 * kChunk;
    for (int i = t; i < kDecayFloats; i += kThreads) shared.decays[i] = i < kChunk ? until[i] : gates[i - kChunk];
    __syncthreads();
    const int count = shared.count;
    if constexpr (kForm == MatrixForm::kOutputs) {
        for (int i = t; i < kKeyDim / 64 * count * kChunk; i += kThreads) {
            shared.dots[i / (count * kChunk)][i % (count * kChunk)] = 0.0F;
        }
        const MixerInputs& in = m.call.inputs;
        for (int i = t; i < (kOwnLevels + count) * kChunk; i += kThreads) {
            const int entry = i / kChunk;
            const int r = i % kChunk;
            const int level = entry < kOwnLevels ? min(entry, m.levels - 1) : shared.walks[entry - kOwnLevels].level;
            float x = 0.0F;
            if (r < c.rows) {
                x = __ldg(in.lambda + (c.first + r) * in.lambda_stride + static_cast<std::int64_t>(c.head) * m.levels +
                          level);
            }
            shared.lambda[i] = x;
        }
    }
}

}  // namespace fenwick::cuda::backward
