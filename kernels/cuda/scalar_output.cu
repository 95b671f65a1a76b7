// Outputs of the scalar algebra on the matrix units. One CTA: the 256 rows of a group, two chunks a warpgroup, for
// several columns of work (head, 64 value columns) that share q and k. Q stays in registers, Q K^T is formed once and
// kept as bf16 fragments; then for each column tiles of 16 KiB stream through shared memory: the states that enter the
// group, each one product whose rows are scaled by lambda exp(G_i + carry) in fp32, and the group's own values.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/scalar_output.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::scalar {
namespace {

// A column of work as head and tile of the head, without a division for each step.
struct Cursor {
    int column, head, tile;
    __device__ __forceinline__ Cursor(int first, int tiles) : column(first), head(first / tiles), tile(first % tiles) {}
    __device__ __forceinline__ void advance(int tiles) {
        ++column;
        if (++tile == tiles) {
            tile = 0;
            ++head;
        }
    }
};

template <int kKeyDim>
__global__ void __launch_bounds__(kThreads, 1) output_kernel(const __grid_constant__ OutputParams p) {
    constexpr int kPanels = kKeyDim / 64;
    const Plan& plan = p.plan;
    extern __shared__ char memory[];
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (start - shared_address(memory));
    const std::uint32_t scores = start;
    const std::uint32_t slots = start + kScoreBytes;
    Shared& shared = *reinterpret_cast<Shared*>(aligned + kScoreBytes + kSlots * kSlotBytes);

    int t = static_cast<int>(threadIdx.x);
    int lane = t % 32;
    int warp = t / 32 % 4;
    int warpgroup = t / 128;
    const auto own = [&](int m) { return m == 0 ? warpgroup : kGroupChunks - 1 - warpgroup; };
    const auto row_of = [&](int m) { return kChunk * own(m) + 16 * warp + lane / 4; };  // of the group; and row + 8

    const int tiles = static_cast<int>(plan.tiles);
    const unsigned splits = static_cast<unsigned>(plan.columns) / static_cast<unsigned>(p.columns_per_cta);
    const std::int64_t group = blockIdx.x / splits;
    const int first_column = static_cast<int>(blockIdx.x % splits) * p.columns_per_cta;
    const std::int64_t first = group * kGroupTokens;
    const int rows = static_cast<int>(min(static_cast<std::int64_t>(kGroupTokens), plan.rows - first));
    const std::int64_t number = plan.first_block * kGroupsPerBlock + group;
    const int states = plan.log_linear ? __popcll(static_cast<unsigned long long>(number)) : 1;
    const int stages = states + 2;

    if (t == 0) list_states(plan, group, p.group_nodes, p.block_nodes, shared);
    {  // q and k of the group
        const std::int64_t key_column = first_column / tiles / static_cast<int>(plan.heads_per_key) * kKeyDim;
        for (int i = t; i < kGroupTokens * kKeyDim / 8; i += kThreads) {
            const int r = i / (kKeyDim / 8);
            const int piece = i % (kKeyDim / 8);
            const std::int64_t token = first + (r < rows ? r : 0);
            const std::uint32_t to =
                (r / kChunk * kPanels + piece / 8) * kPanelBytes + tile_offset(r % kChunk, piece % 8);
            copy_async_16(scores + to, p.q + token * p.q_stride + key_column + piece * 8, r < rows);
            copy_async_16(slots + to, p.k + token * p.k_stride + key_column + piece * 8, r < rows);
        }
        copy_async_commit();
    }
    __syncthreads();
    store_factors(load_factors(p, shared, group, rows, states, first_column / tiles, t), shared.factors[0], t, states);
    copy_async_wait<0>();
    fence_for_wgmma();
    __syncthreads();

    // Q as fragments, then the blocks of Q K^T on and under the diagonal.
    std::uint32_t q[2][4 * kPanels][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int s = 0; s < 4 * kPanels; ++s) {
            load_a(q[m][s], scores + (own(m) * kPanels + s / 4) * kPanelBytes, warp, s % 4, lane);
        }
    }
    __syncthreads();  // every q is in registers: scores may take its place
    const auto scores_of = [&](int m, int from) {
        return scores + (own(m) * (own(m) + 1) / 2 + from) * kPanelBytes + t % 128 * 16;
    };
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        for (int from = 0; from <= own(m); ++from) {
            float s[32];
            issue_product<4, Rows::kColumns, false>(s, q[m], slots + from * kPanels * kPanelBytes, lane);
            if constexpr (kPanels == 2) {
                issue_product<4, Rows::kColumns, true>(s, q[m] + 4, slots + (from * kPanels + 1) * kPanelBytes, lane);
            }
            product_commit();
            product_wait<0>();
            product_done(s);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                store_shared(scores_of(m, from) + i * 2048,
                             make_uint4(pack_bf16(s[8 * i], s[8 * i + 1]), pack_bf16(s[8 * i + 2], s[8 * i + 3]),
                                        pack_bf16(s[8 * i + 4], s[8 * i + 5]), pack_bf16(s[8 * i + 6], s[8 * i + 7])));
            }
        }
    }
    __syncthreads();  // k has been read: the ring may take its place

    const int end_column = first_column + p.columns_per_cta;
    Cursor next(first_column, tiles);
    int next_stage = 0;
    int next_slot = 0;
    const auto issue = [&] {
        if (next.column < end_column) {
            const std::uint32_t to = slots + next_slot * kSlotBytes;
            if (next_stage < states) {
                const char* from = shared.from[next_stage] +
                                   static_cast<std::int64_t>(next.column) * (kKeyDim * kTileRowBytes) + t * 16;
#pragma unroll
                for (int i = 0; i < kKeyDim * 8 / kThreads; ++i) {
                    copy_async_16(to + (t + i * kThreads) * 16, from + i * kThreads * 16, true);
                }
            } else {
                constexpr int kRowsAtOnce = kThreads / 8;
                const int r = (next_stage - states) * 2 * kChunk + t / 8;
                const int tile_column = next.tile * 64 + t % 8 * 8;
                const __nv_bfloat16* from = p.v + first * p.v_stride + r * p.v_stride +
                                            next.head * static_cast<int>(plan.value_dim) + tile_column;
#pragma unroll
                for (int i = 0; i < 2 * kChunk / kRowsAtOnce; ++i) {
                    const bool live = r + i * kRowsAtOnce < rows && tile_column < plan.value_dim;
                    copy_async_16(to + tile_offset(t / 8 + i * kRowsAtOnce, t % 8),
                                  live ? from + i * kRowsAtOnce * p.v_stride : p.v, live);
                }
            }
            if (++next_stage == stages) {
                next_stage = 0;
                next.advance(tiles);
            }
        }
        if (++next_slot == kSlots) next_slot = 0;
        copy_async_commit();
    };
    for (int s = 0; s < kAhead; ++s) issue();

    const auto load_lambda = [&](int head, bool there, int stage, float(&lambda)[2][2]) {
        const bool wanted = plan.log_linear && there && stage < states;
        const float* from = p.lambda + first * p.lambda_stride + head * static_cast<int>(plan.levels) +
                            (wanted ? shared.level[stage] : 0);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = row_of(i / 2) + i % 2 * 8;
            float x = plan.log_linear ? 0.0F : 1.0F;
            if (wanted && r < rows) x = __ldg(from + r * p.lambda_stride);
            lambda[i / 2][i % 2] = x;
        }
    };
    float acc[2][32];
    float lambda[2][2];
    Cursor now(first_column, tiles);
    load_lambda(now.head, true, 0, lambda);
    int slot_index = 0;
    for (int index = 0; index < p.columns_per_cta; ++index) {
        Cursor following = now;
        following.advance(tiles);
        // Opaque to the compiler, so that it computes addresses anew for each column: kept, they would be spilled.
        asm volatile("" : "+r"(t), "+r"(lane), "+r"(warp), "+r"(warpgroup));
        const Factors& f = shared.factors[index % 2];
        const auto next_tile = [&] {
            copy_async_wait<kAhead - 1>();
            fence_for_wgmma();
            __syncthreads();
            const std::uint32_t tile = slots + slot_index * kSlotBytes;
            if (++slot_index == kSlots) slot_index = 0;
            return tile;
        };
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (float& x : acc[m]) x = 0.0F;
        }
#pragma unroll 1
        for (int stage = 0; stage < states; ++stage) {
            const std::uint32_t tile = next_tile();
            float part[2][32];
            issue_product<4 * kPanels, Rows::kDepth, false>(part[0], q[0], tile, lane);
            product_commit();
            issue_product<4 * kPanels, Rows::kDepth, false>(part[1], q[1], tile, lane);
            product_commit();
            issue();
            const double carry = f.carry[stage];
            float factor[2][2];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                factor[i / 2][i % 2] = lambda[i / 2][i % 2] * fast_exp(f.cumulative[row_of(i / 2) + i % 2 * 8] + carry);
            }
            const bool last = stage + 1 == states;
            load_lambda(last ? following.head : now.head, !last || following.column < end_column, last ? 0 : stage + 1,
                        lambda);
            const auto add = [&](int m) {
                product_done(part[m]);
#pragma unroll
                for (int i = 0; i < 32; ++i) acc[m][i] = fmaf(factor[m][i / 2 % 2], part[m][i], acc[m][i]);
            };
            product_wait<1>();
            add(0);
            product_wait<0>();
            add(1);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const std::uint32_t tile = next_tile();
            LoadedFactors loaded;
            const bool prepare = half == 1 && following.column < end_column;
            if (prepare) loaded = load_factors(p, shared, group, rows, states, following.head, t);
            if (half == 0 && following.column < end_column && t < rows) {
                const FactorSource source = factor_source(p, first, following.head, t);
                if (plan.log_linear) prefetch(source.lambda);
                if (t % 8 == 0) prefetch(source.cumulative + t);
            }
            std::uint32_t a[2][4][4];
            const auto earlier = [&](std::uint32_t(&to)[4][4], int m, int from) {
                load_scores(to, scores_of(m, from));
                scale_earlier(to, f, from, own(m), row_of(m), lane);
                issue_product<4, Rows::kDepth, true>(acc[m], to, tile + from % 2 * kPanelBytes, lane);
                product_commit();
            };
            const auto diagonal = [&](std::uint32_t(&to)[4][4], int m) {
                load_scores(to, scores_of(m, own(m)));
                scale_own(to, f, own(m), warp, lane);
                issue_product<4, Rows::kDepth, true>(acc[m], to, tile + own(m) % 2 * kPanelBytes, lane);
                product_commit();
            };
            // What both warpgroups have, products in flight; then the block that only one of them has.
            if (half == 0) {
                earlier(a[0], 1, 0);
                issue();
                earlier(a[1], 1, 1);
                product_wait<1>();
                diagonal(a[0], 0);
            } else {
                diagonal(a[0], 1);
                issue();
            }
            product_wait<0>();
            product_done(acc[0]);
            product_done(acc[1]);
            if (warpgroup == 1 - half) {
                earlier(a[0], half, 2 * half);
                product_wait<0>();
                product_done(acc[half]);
            }
            if (prepare) store_factors(loaded, shared.factors[(index + 1) % 2], t, states);
        }
        const int tile_column = now.tile * 64 + lane % 4 * 8;
        __nv_bfloat16* out = p.out + first * p.out_stride + now.head * static_cast<int>(plan.value_dim) + tile_column;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int m = i / 4;
            const int part = i / 2 % 2;
            const int r = row_of(m) + 8 * part;
            std::uint32_t w[4];
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int at = 4 * (4 * (i % 2) + n) + 2 * part;
                w[n] = pack_bf16(acc[m][at], acc[m][at + 1]);
            }
            transpose_quad(w, lane);
            if (r < rows && tile_column + i % 2 * 32 < plan.value_dim) {
                *reinterpret_cast<uint4*>(out + r * p.out_stride + i % 2 * 32) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
        now = following;
    }
}

// Columns of one CTA: a divisor of those that share q and k; fewer where the document is short, to fill the chip.
int columns_per_cta(const Plan& plan) {
    constexpr std::int64_t kMost = 16;
    constexpr std::int64_t kEnough = 120;
    const std::int64_t sharing = plan.heads_per_key * plan.tiles;
    std::int64_t best = 1;
    for (std::int64_t n = 1; n <= std::min(sharing, kMost); ++n) {
        if (sharing % n == 0 && plan.groups * (plan.columns / n) >= kEnough) best = n;
    }
    return static_cast<int>(best);
}

}  // namespace

void launch_outputs(const Plan& plan, const MixerCall& call, void* out) {
    const MixerInputs& in = call.inputs;
    OutputParams p{};
    p.plan = plan;
    p.q = static_cast<const __nv_bfloat16*>(in.q);
    p.k = static_cast<const __nv_bfloat16*>(in.k);
    p.v = static_cast<const __nv_bfloat16*>(in.v);
    p.q_stride = in.q_stride;
    p.k_stride = in.k_stride;
    p.v_stride = static_cast<int>(in.v_stride);
    p.lambda = in.lambda;
    p.lambda_stride = static_cast<int>(in.lambda_stride);
    p.out_stride = static_cast<int>(plan.heads * plan.value_dim);
    p.cumulative = at<double>(call.workspace, plan.cumulative);
    p.group_nodes = at<char>(call.workspace, plan.group_nodes);
    p.block_nodes = at<char>(call.workspace, plan.block_nodes);
    p.carries = at<float>(call.workspace, plan.carries);
    p.out = static_cast<__nv_bfloat16*>(out);
    p.columns_per_cta = columns_per_cta(plan);
    const auto kernel = plan.key_dim == 64 ? output_kernel<64> : output_kernel<128>;
    allow_shared(kernel, kBytes);
    const std::int64_t ctas = plan.groups * (plan.columns / p.columns_per_cta);
    kernel<<<static_cast<unsigned>(ctas), kThreads, kBytes, call.stream>>>(p);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::scalar
