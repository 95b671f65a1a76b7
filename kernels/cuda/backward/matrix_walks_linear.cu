// The walks of a linear model's one state, forward and back (matrix.h): a warpgroup has 64 columns of the state, or of
// its gradient, in its registers, transposed as matrix_step.cuh has them, and a warp needs nothing of the others.
#include "core/cuda/check.h"
#include "kernels/cuda/backward/matrix_walk.cuh"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/matrix_step.cuh"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

using matrix::Columns;

constexpr int kThreads = 128;

template <int kKeyDim, bool kBack>
struct Stage {
    static constexpr int kKeyBytes = kKeyDim / 64 * kPanelBytes;
    alignas(1024) unsigned char keys[kKeyBytes];
    alignas(1024) unsigned char queries[kBack ? kKeyBytes : 1024];
    alignas(1024) unsigned char rows[kPanelBytes];  // 64 columns of V, or of dO
    alignas(1024) unsigned char triangle[kPanelBytes];
    alignas(1024) unsigned char scores[kBack ? kPanelBytes : 1024];
};

// The decays stand apart, or each stage would be padded: back two thread blocks just fit into a multiprocessor.
template <int kKeyDim, bool kBack>
struct Shared {
    Stage<kKeyDim, kBack> stages[2];
    float decays[2][2 * kChunk];
};

template <int kKeyDim, bool kBack>
__device__ __forceinline__ void load_stage(const Matrix& m, Stage<kKeyDim, kBack>& stage, float* decays,
                                           const MatrixChunk& c, std::int64_t key_column, int tile) {
    const MixerInputs& in = m.call.inputs;
    const std::int64_t column = static_cast<std::int64_t>(c.head) * m.value_dim + tile * 64;
    const auto load_keys = [&](unsigned char* to, const void* from, std::int64_t stride) {
        matrix::load_panels<kKeyDim / 8, kThreads>(
            matrix::shared_address(to), static_cast<const __nv_bfloat16*>(from) + c.first * stride + key_column, stride,
            c.rows, kKeyDim);
    };
    const auto load_square = [&](unsigned char* to, const __nv_bfloat16* from) {
        matrix::load_triangle<kThreads>(matrix::shared_address(to), from + c.place * kChunk * kChunk);
    };
    load_keys(stage.keys, in.k, in.k_stride);
    if constexpr (kBack) load_keys(stage.queries, in.q, in.q_stride);
    const void* rows = kBack ? m.call.d_out : in.v;
    const std::int64_t stride = kBack ? m.call.d_out_stride : in.v_stride;
    matrix::load_panels<8, kThreads>(matrix::shared_address(stage.rows),
                                     static_cast<const __nv_bfloat16*>(rows) + c.first * stride + column, stride,
                                     c.rows, m.value_dim - tile * 64);
    load_square(stage.triangle, m.prepared.triangle);
    if constexpr (kBack) load_square(stage.scores, m.prepared.second);
    if (threadIdx.x < 32) {
        matrix::copy_16(matrix::shared_address(decays + 4 * threadIdx.x),
                        m.prepared.decays + c.place * 2 * kChunk + 4 * threadIdx.x, true);
    }
}

// y += r B for a tile B [64, 64], inside a group of products.
__device__ __forceinline__ void add_columns(const std::uint32_t (&r)[4][4], const unsigned char* tile, float (&y)[32]) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        matrix::product_nn<64>(y, r[step], matrix::shared_address(tile), step * 16 * 128, kPanelBytes);
    }
}

// dX' of the chunk's end becomes dX of its start. `see_values` gets -dV^T while the last products run.
template <int kKeyDim, class Meanwhile, class SeeValues>
__device__ __forceinline__ void step_back(Columns<kKeyDim>& x, const Stage<kKeyDim, true>& stage, const float* decays,
                                          int warp, const Meanwhile& meanwhile, const SeeValues& see_values) {
    const std::uint32_t keys = matrix::shared_address(stage.keys);
    float y[32];
    matrix::read_state<kKeyDim>(x, keys, y, meanwhile);
    matrix::scale_tokens(y, decays + kChunk);
    matrix::negate(y);
    std::uint32_t d_out[4][4];
    std::uint32_t a[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        matrix::load_a_transposed(d_out[step], matrix::shared_address(stage.rows), 16 * step,
                                  static_cast<std::uint32_t>(32 * warp));
#pragma unroll
        for (int i = 0; i < 4; ++i) a[step][i] = d_out[step][i] ^ 0x80008000U;  // -dO
    }
    matrix::products_begin(y);
    add_columns(a, stage.scores, y);  // -dZ
    matrix::products_commit();
    const int pair = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 f = *reinterpret_cast<const float2*>(decays + 16 * step + 8 * (i / 2) + pair);
            d_out[step][i] = matrix::pack(matrix::low_of(d_out[step][i]) * f.x, matrix::high_of(d_out[step][i]) * f.y);
        }
    }
    matrix::scale_state<kKeyDim>(x, decays[kChunk - 1]);
    matrix::products_wait<0>();
    matrix::keep(y);
    std::uint32_t b[4][4];
    matrix::pack_tokens(y, b);
    matrix::clear(y);
    matrix::products_begin(y);
    add_columns(b, stage.triangle, y);
    matrix::products_commit();
    matrix::products_begin(x);
    matrix::add_to_state<kKeyDim>(x, d_out, matrix::shared_address(stage.queries));
    matrix::products_commit();
    matrix::products_wait<1>();
    matrix::keep(y);
    matrix::pack_tokens(y, decays, a);
    matrix::products_fence();
    matrix::add_to_state<kKeyDim>(x, a, keys);
    matrix::products_commit();
    see_values(y);
    matrix::products_wait<0>();
    matrix::keep(x);
}

// The gradient of v from -dV^T [16 columns from `column` on, 64].
__device__ __forceinline__ void put_value_gradients(const Matrix& m, const MatrixChunk& c, const float (&y)[32],
                                                    int column, int lane) {
    const MixerGradients& g = m.call.gradients;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own = column + lane / 4 + 8 * half;
        if (own >= m.value_dim) continue;
        const int token = lane % 4 * 2;
        float* to = g.v + (c.first + token) * g.v_stride + static_cast<std::int64_t>(c.head) * m.value_dim + own;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            if (8 * n + token < c.rows) to[0] = -y[4 * n + 2 * half];
            if (8 * n + token + 1 < c.rows) to[g.v_stride] = -y[4 * n + 2 * half + 1];
            to += 8 * g.v_stride;
        }
    }
}

// kKept: X and Z, or dX', dV and the gradient of v, of every chunk are written. Else the gradient of what enters the
// block is, of its own outputs alone.
template <int kKeyDim, bool kBack, bool kKept>
__global__ void __launch_bounds__(kThreads, 2) walks_kernel(const __grid_constant__ Matrix m) {
    extern __shared__ __align__(1024) unsigned char raw[];
    auto& s = *reinterpret_cast<Shared<kKeyDim, kBack>*>(raw);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(m.tiles));
    const unsigned pair = blockIdx.x / static_cast<unsigned>(m.tiles);
    const int head = static_cast<int>(pair % static_cast<unsigned>(m.heads));
    const std::int64_t in_batch = pair / static_cast<unsigned>(m.heads);
    const std::int64_t first_number = in_batch * kChunks;
    const std::int64_t place = in_batch * m.heads + head;
    const int first_column = 64 * tile + 16 * warp;
    const auto key_column = static_cast<std::int64_t>(head / m.heads_per_key) * kKeyDim;
    const std::int64_t elements = std::int64_t{kKeyDim} * m.value_dim;
    const bool entered = m.call.first_block + m.batch_block + in_batch != 0;
    if (!kKept && !entered) return;
    const int end_chunk = kKept ? chunk_of(m, first_number, head).chunks : m.memory[place].end_chunk;

    const float* from = nullptr;
    if (kKept && !kBack && entered) from = m.entering + place * elements;
    if (kKept && kBack && in_batch < m.d_blocks) {
        const std::int64_t transition = std::int64_t{kKeyDim} * kKeyDim;
        from = m.d_summaries + place * (transition + elements) + transition;
    }
    Columns<kKeyDim> x;
    if (from != nullptr) {
        matrix::load_columns<kKeyDim>(x, from, m.value_dim, first_column, m.value_dim);
    } else {
        matrix::clear(x);
    }
    const auto chunk_at = [&](int step) {
        return chunk_of(m, first_number + (kBack ? end_chunk - 1 - step : step), head);
    };
    const auto load = [&](int step) {
        if (step < end_chunk) {
            load_stage<kKeyDim, kBack>(m, s.stages[step % 2], s.decays[step % 2], chunk_at(step), key_column, tile);
        }
        matrix::copies_commit();
    };
    load(0);
    for (int step = 0; step < end_chunk; ++step) {
        const int lane = matrix::lane_now();
        const int row = 16 * warp + lane / 4;
        const std::int64_t number = matrix::opaque(chunk_at(step).place * m.tiles + tile);
        if constexpr (kKept) {
            auto* to = reinterpret_cast<char*>((kBack ? m.d_states : m.states) + number * m.state_elements());
#pragma unroll
            for (int panel = 0; panel < kKeyDim / 64; ++panel) {
                store_tile(reinterpret_cast<const float(&)[32]>(x[32 * panel]), to + panel * kPanelBytes, row, lane);
            }
        }
        matrix::copies_wait<0>();
        matrix::publish_shared();
        __syncthreads();  // the chunk is there, and everyone is done with the one before it
        const auto load_next = [&] { load(step + 1); };
        const auto see_values = [&](const float(&y)[32]) {
            if constexpr (kKept) store_tile(y, (kBack ? m.d_values : m.values) + number * kChunk * kChunk, row, lane);
            if constexpr (kKept && kBack) put_value_gradients(m, chunk_at(step), y, first_column, lane);
        };
        if constexpr (kBack) {
            step_back<kKeyDim>(x, s.stages[step % 2], s.decays[step % 2], warp, load_next, see_values);
        } else {
            const auto& stage = s.stages[step % 2];
            matrix::step_state<kKeyDim>(x, matrix::shared_address(stage.keys), matrix::shared_address(stage.rows),
                                        matrix::shared_address(stage.triangle), s.decays[step % 2], warp, load_next,
                                        see_values);
        }
    }
    if constexpr (!kKept) {
        matrix::store_columns<kKeyDim>(x, m.d_entering + place * elements, m.value_dim, first_column, m.value_dim);
    }
}

template <int kKeyDim, bool kBack, bool kKept>
void launch(const Matrix& m) {
    const auto kernel = walks_kernel<kKeyDim, kBack, kKept>;
    constexpr int kBytes = static_cast<int>(sizeof(Shared<kKeyDim, kBack>));
    allow_shared(kernel, kBytes);
    const auto blocks = static_cast<unsigned>(m.batch_blocks * m.heads * m.tiles);
    kernel<<<blocks, kThreads, kBytes, m.call.stream>>>(m);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

template <int kKeyDim>
void launch_both(const Matrix& m) {
    launch<kKeyDim, false, true>(m);
    launch<kKeyDim, true, true>(m);
}

}  // namespace

void launch_matrix_walks_linear(const Matrix& m) {
    (m.key_dim == 64 ? launch_both<64> : launch_both<128>)(m);
}

void launch_matrix_entering_gradients(const Matrix& m) {
    (m.key_dim == 64 ? launch<64, true, false> : launch<128, true, false>)(m);
}

}  // namespace fenwick::cuda::backward
