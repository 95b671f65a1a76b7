// What a chunk of one head needs before its products with states and values, from q, k and log decays in one reading.
//
// exp(G_i - G_j) of a pair is split at the middle of the pair's vertex in the chunk's tree
// (kernels/cpu/chunk_diagonal.cc): three levels of vertices (32, 16 and 8 tokens a half) are products on the matrix
// units, pairs inside eight tokens are summed in fp32. A thread has two channels of a quarter of the chunk in its
// registers; decays are running products.
#include "core/cuda/check.h"
#include "kernels/cuda/diagonal_channels.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::diagonal {
namespace {

using namespace matrix;  // NOLINT(google-build-using-namespace): the tile helpers

constexpr int kDirectPairs = kEighthTokens * (kEighthTokens + 1) / 2;
constexpr int kScoreStride = 72;
constexpr int kOwnLevels = 7;  // levels inside a chunk: 0 to 6

struct Arguments {
    const bf16* q;
    const bf16* k;
    const float* log_decay;
    const float* lambda;
    std::int64_t q_stride, k_stride, decay_stride, lambda_stride, rows;
    int heads, heads_per_key, levels;
    Prepared to;
};

template <int kDk>
struct Shared {
    alignas(
        1024) unsigned char level[3][kDk / 64 * kPanelBytes];  // halves of 8, 16, 32 tokens: odd ones q, even ones k
    float scores[kC][kScoreStride];
    float direct[kDk / 64][8][kDirectPairs];
    float lambda[kC][kOwnLevels];
    Quarters<kDk> quarters;
};

// Folds 2 kHalf values from kFirst on into kHalf: a lane keeps the half that its bit kLaneBit names, summed over both
// lanes.
template <int kFirst, int kHalf, int kLaneBit, int kSize>
__device__ __forceinline__ void fold(float (&x)[kSize], int lane) {
    const bool upper = (lane & kLaneBit) != 0;
#pragma unroll
    for (int i = kFirst; i < kFirst + kHalf; ++i) {
        const float low = x[i];
        const float high = x[i + kHalf];
        x[i] = (upper ? high : low) + __shfl_xor_sync(0xFFFFFFFFU, upper ? low : high, kLaneBit);
    }
}

// Sums 16 values over the lanes of a warp, in a fixed order: lanes 2 n and 2 n + 1 get value n.
__device__ __forceinline__ float sum_values(float (&x)[16], int lane) {
    fold<0, 8, 16>(x, lane);
    fold<0, 4, 8>(x, lane);
    fold<0, 2, 4>(x, lane);
    fold<0, 1, 2>(x, lane);
    return x[0] + __shfl_xor_sync(0xFFFFFFFFU, x[0], 1);
}

// Scores of token kRow of an eighth with the tokens up to it: x[kFirst + j] for tokens j, over the thread's two
// channels.
template <int kRow, int kFirst>
__device__ __forceinline__ void direct_row(float (&x)[16], const std::uint32_t* q, const std::uint32_t* k,
                                           const float2* a) {
    float2 query = unpack(q[kRow]);
#pragma unroll
    for (int j = kRow; j >= 0; --j) {
        const float2 key = unpack(k[j]);
        x[kFirst + j] = fmaf(query.x, key.x, query.y * key.y);
        if (j > 0) query = query * a[j];
    }
}

// All pairs of an eighth to `to` [36], pair (i, j) at i (i + 1) / 2 + j.
__device__ __forceinline__ void direct_pairs(const std::uint32_t* q, const std::uint32_t* k, const float2* a, int lane,
                                             float* to) {
    const int n = lane / 2;
    float x[16];
    x[15] = 0.0F;
    direct_row<6, 0>(x, q, k, a);
    direct_row<7, 7>(x, q, k, a);
    float sum = sum_values(x, lane);
    if (n < 15) to[21 + n] = sum;
    x[15] = 0.0F;
    direct_row<3, 0>(x, q, k, a);
    direct_row<4, 4>(x, q, k, a);
    direct_row<5, 9>(x, q, k, a);
    sum = sum_values(x, lane);
    if (n < 15) to[6 + n] = sum;
    float y[16];
    direct_row<0, 0>(y, q, k, a);
    direct_row<1, 1>(y, q, k, a);
    direct_row<2, 3>(y, q, k, a);
    y[6] = 0.0F;
    y[7] = 0.0F;
    fold<0, 4, 16>(y, lane);
    fold<0, 2, 8>(y, lane);
    fold<0, 1, 4>(y, lane);
    sum = y[0] + __shfl_xor_sync(0xFFFFFFFFU, y[0], 2);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    if (lane / 4 < 6) to[lane / 4] = sum;
}

// Scores of 16 rows from `row` and 16 columns from `column` of a level's tile.
template <int kDk>
__device__ __forceinline__ void level_product(float (&c)[8], std::uint32_t tile, int row, int column, int lane) {
#pragma unroll
    for (float& x : c) x = 0.0F;
    const auto mine = static_cast<std::uint32_t>((lane % 8 + (lane / 16) * 8) * 128 + (lane / 8 % 2) * 16);
#pragma unroll
    for (int step = 0; step < kDk / 16; ++step) {
        const std::uint32_t at = tile + static_cast<std::uint32_t>((step / 4) * kPanelBytes + (step % 4) * 32);
        std::uint32_t a[4];
        std::uint32_t b[4];
        load_a(a, at, row);
        ldmatrix(b, swizzled(at + mine) + static_cast<std::uint32_t>(column * 128));
        mma(c[0], c[1], c[2], c[3], a, b[0], b[1]);
        mma(c[4], c[5], c[6], c[7], a, b[2], b[3]);
    }
}

// One CTA: one chunk of one head.
template <int kDk>
__global__ void __launch_bounds__(2 * kDk, kDk == 128 ? 2 : 4) prepare(const Arguments args) {
    constexpr int kThreads = 2 * kDk;
    constexpr int kPairs = kDk / 2;
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<kDk>& s = *reinterpret_cast<Shared<kDk>*>(raw);
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32;
    const int pair = t % kPairs;
    const int quarter = t / kPairs;  // the same for all lanes of a warp
    const std::int64_t tile = blockIdx.x;
    const int head = static_cast<int>(tile % args.heads);
    const std::int64_t first = tile / args.heads * kC;
    const std::int64_t left = args.rows - first;
    const int rows = static_cast<int>(left < kC ? (left < 0 ? 0 : left) : kC);

    float2 a[kQuarterTokens];
    std::uint32_t q[kQuarterTokens];
    std::uint32_t k[kQuarterTokens];
    {
        const std::int64_t row = first + quarter * kQuarterTokens;
        const int left_rows = rows - quarter * kQuarterTokens;
        const int key_column = head / args.heads_per_key * kDk + 2 * pair;
        load_decays(a, args.log_decay + row * args.decay_stride + head * kDk + 2 * pair, args.decay_stride, left_rows);
        load_pairs(k, args.k + row * args.k_stride + key_column, args.k_stride, left_rows);
        load_pairs(q, args.q + row * args.q_stride + key_column, args.q_stride, left_rows);
    }
    for (int i = t; i < kC * kOwnLevels; i += kThreads) {
        const int row = i / kOwnLevels;
        const int level = i % kOwnLevels;
        float x = 1.0F;
        if (args.levels > 0 && row < rows) {
            x = args.lambda[(first + row) * args.lambda_stride + head * args.levels + min(level, args.levels - 1)];
        }
        s.lambda[row][level] = x;
    }
    float2 part[2];
    form_decays(a, part, s.quarters, quarter, pair);
    __syncthreads();
    float2 total[4];
    load_totals(total, s.quarters, pair);
    if (t < kDk) args.to.decays[tile * kDk + t] = expf(chunk_log(s.quarters, t));
    // Decays between this quarter and the vertices' middles, the chunk's start and its end.
    const float2 one = make_float2(1.0F, 1.0F);
    const float2 to_32 = quarter == 3 ? total[2] : (quarter == 0 ? total[1] : one);
    float2 to_start = one;
#pragma unroll
    for (int r = 0; r < 3; ++r) to_start = r < quarter ? to_start * total[r] : to_start;
    const float2 to_end = decay_to_end(total, quarter);
    // A row's place in a swizzled tile: 16-byte pieces are permuted by the row.
    const int base = pair / 32 * kPanelBytes + quarter * kQuarterTokens * 128;
    const auto place = [&](int i) { return base + i * 128 + ((pair % 32 * 4) ^ ((i % 8) * 16)); };
    const std::int64_t out = tile * (kC * kPairs) + quarter * (kQuarterTokens * kPairs) + pair;
    std::uint32_t* keys = reinterpret_cast<std::uint32_t*>(args.to.keys) + out;
    std::uint32_t* queries = reinterpret_cast<std::uint32_t*>(args.to.queries) + out;
    unsigned char* eighths = s.level[0];
    unsigned char* quarters = s.level[1];
    unsigned char* halves = s.level[2];

    float2 after = one;  // decay of the tokens after this one in its eighth
#pragma unroll
    for (int i = kQuarterTokens - 1; i >= 0; --i) {
        if (i == kEighthTokens - 1) after = one;
        const float2 key = unpack(k[i]) * after;
        const float2 in_quarter = i < kEighthTokens ? key * part[1] : key;
        keys[i * kPairs] = pack(in_quarter * to_end);
        if (i < kEighthTokens) *reinterpret_cast<std::uint32_t*>(eighths + place(i)) = pack(key);
        if (quarter % 2 == 0) *reinterpret_cast<std::uint32_t*>(quarters + place(i)) = pack(in_quarter);
        if (quarter < 2) *reinterpret_cast<std::uint32_t*>(halves + place(i)) = pack(in_quarter * to_32);
        after = after * a[i];
    }
    float2 until = one;  // decay from the eighth's start to this token, this one included
#pragma unroll
    for (int i = 0; i < kQuarterTokens; ++i) {
        until = i % kEighthTokens == 0 ? a[i] : until * a[i];
        const float2 query = unpack(q[i]) * until;
        const float2 in_quarter = i < kEighthTokens ? query : query * part[0];
        queries[i * kPairs] = pack(in_quarter * to_start);
        if (i >= kEighthTokens) *reinterpret_cast<std::uint32_t*>(eighths + place(i)) = pack(query);
        if (quarter % 2 == 1) *reinterpret_cast<std::uint32_t*>(quarters + place(i)) = pack(in_quarter);
        if (quarter >= 2) *reinterpret_cast<std::uint32_t*>(halves + place(i)) = pack(in_quarter * to_32);
    }
    direct_pairs(q, k, a, lane, s.direct[pair / 32][2 * quarter]);
    direct_pairs(q + kEighthTokens, k + kEighthTokens, a + kEighthTokens, lane, s.direct[pair / 32][2 * quarter + 1]);
    __syncthreads();

    const auto store = [&](float low, float high, int row, int column) {
        *reinterpret_cast<float2*>(&s.scores[row + lane / 4][column + 2 * (lane % 4)]) = make_float2(low, high);
    };
    for (int task = warp; task < 8; task += kThreads / 32) {
        if (task < 6) {
            const int row = task < 4 ? 32 + 16 * (task % 2) : 16 + 32 * (task - 4);
            const int column = task < 4 ? 16 * (task / 2) : 32 * (task - 4);
            float c[8];
            level_product<kDk>(c, matrix::shared_address(s.level[task < 4 ? 2 : 1]), row, column, lane);
            store(c[0], c[1], row, column);
            store(c[2], c[3], row + 8, column);
            store(c[4], c[5], row, column + 8);
            store(c[6], c[7], row + 8, column + 8);
        } else {
            for (int u = 2 * (task - 6); u < 2 * (task - 6) + 2; ++u) {  // of 16 x 16 only the lower left quarter
                float c[8];
                level_product<kDk>(c, matrix::shared_address(s.level[0]), 16 * u, 16 * u, lane);
                store(c[2], c[3], 16 * u + 8, 16 * u);
            }
        }
    }
    __syncthreads();

    char* scores = reinterpret_cast<char*>(args.to.scores) + tile * (kC * kC * 2);
    for (int n = t; n < kC * 8; n += kThreads) {
        const int row = n / 8;
        const int block = n % 8;
        float x[8];
        if (block > row / 8) {
#pragma unroll
            for (float& value : x) value = 0.0F;
        } else if (block < row / 8) {
            const float factor = s.lambda[row][35 - __clz(block ^ (row / 8))];
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = factor * s.scores[row][8 * block + j];
        } else {
            const int i = row % 8;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                float sum = 0.0F;
                if (j <= i) {
#pragma unroll
                    for (int w = 0; w < kDk / 64; ++w) sum += s.direct[w][block][i * (i + 1) / 2 + j];
                    sum *= s.lambda[row][32 - __clz(i ^ j)];
                }
                x[j] = sum;
            }
        }
        *reinterpret_cast<uint4*>(scores + row * 128 + ((block * 16) ^ ((row % 8) * 16))) = make_uint4(
            matrix::pack(x[0], x[1]), matrix::pack(x[2], x[3]), matrix::pack(x[4], x[5]), matrix::pack(x[6], x[7]));
    }
}

template <int kDk>
void launch(const Arguments& args, std::int64_t tiles, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk>));
    allow_shared(prepare<kDk>, kBytes);
    prepare<kDk><<<static_cast<unsigned>(tiles), 2 * kDk, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_prepare(const Work& work, cudaStream_t stream) {
    const MixerShape& shape = work.shape;
    const MixerInputs& in = work.inputs;
    const Arguments args{static_cast<const bf16*>(in.q),
                         static_cast<const bf16*>(in.k),
                         in.log_decay,
                         in.lambda,
                         in.q_stride,
                         in.k_stride,
                         in.decay_stride,
                         in.lambda_stride,
                         in.rows,
                         static_cast<int>(shape.heads),
                         static_cast<int>(shape.heads / shape.key_heads),
                         static_cast<int>(shape.levels),
                         work.prepared};
    const std::int64_t tiles = work.chunks * shape.heads;
    shape.key_dim == 128 ? launch<128>(args, tiles, stream) : launch<64>(args, tiles, stream);
}

}  // namespace fenwick::cuda::diagonal
