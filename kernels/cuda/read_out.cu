#include <algorithm>

#include "kernels/cuda/operand.h"
#include "kernels/cuda/read_out.h"

namespace fenwick::cuda {
namespace {

// Threads for a group and groups of a block: functions of the group's size alone, as is every sum's order.
constexpr std::int64_t kWideGroup = 1024;
constexpr std::int64_t kWideThreads = 256;  // at most
constexpr int kWideHeld = 4;
constexpr int kWarpGroups = 8;

/// One thread's share of a row: pointers to the row, and what `ReadOut` says of it.
template <class T, int kCount>
struct Row {
    T* o;
    const T* x;
    const T* gate;
    const float* skip;
    const float* weight;  // of the group
    unsigned skip_channels;
    bool one_skip;  // for all channels of an access
    bool gate_first;

    /// v of the channels from `c` on, with the gate where it comes first.
    __device__ Values<kCount> input(unsigned c) const {
        Values<kCount> v = load_values<kCount>(o + c);
        if (x != nullptr) {
            const Values<kCount> from = load_values<kCount>(x + c);
            const float d = skip[c / skip_channels];
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                v.at[i] = fmaf(one_skip ? d : skip[(c + i) / skip_channels], from.at[i], v.at[i]);
            }
        }
        if (gate != nullptr && gate_first) gated(v, c);
        return v;
    }
    __device__ void gated(Values<kCount>& v, unsigned c) const {
        const Values<kCount> z = load_values<kCount>(gate + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) v.at[i] *= silu_for<T>(z.at[i]);
    }
    /// y of the group's channels from `c` on; `first` is the group's first channel.
    __device__ void finish(Values<kCount> v, float factor, unsigned first, unsigned c) const {
        if (weight != nullptr) {
            const Values<kCount> w = load_values<kCount>(weight + c);
#pragma unroll
            for (int i = 0; i < kCount; ++i) v.at[i] = v.at[i] * factor * w.at[i];
        }
        if (gate != nullptr && !gate_first) gated(v, first + c);
        store_values<kCount>(o + first + c, v);
    }
};

/// kHeld: accesses of a thread whose values stay in registers between sum and result; 0: they are read twice.
template <class T, int kCount, int kHeld>
__global__ void read_out_kernel(ReadOut call, unsigned groups) {
    __shared__ float scratch[32];
    const std::int64_t r = blockIdx.x;
    const unsigned index = blockIdx.y * blockDim.y + threadIdx.y;
    if (index >= groups) return;  // whole warps, and only where a group is one warp: nobody waits for them
    const auto size = static_cast<unsigned>(call.group_size);
    const unsigned first = index * size;
    const unsigned step = blockDim.x * kCount;
    const unsigned mine = threadIdx.x * kCount;
    const auto row_of = [&](const void* rows, std::int64_t stride) {
        return rows == nullptr ? nullptr : static_cast<const T*>(rows) + r * stride;
    };
    const bool shared_weight = call.weight_period == call.group_size;
    const Row<T, kCount> row{static_cast<T*>(call.o) + r * call.channels,
                             row_of(call.x, call.x_stride),
                             row_of(call.gate, call.gate_stride),
                             call.skip,
                             call.weight == nullptr || shared_weight ? call.weight : call.weight + first,
                             static_cast<unsigned>(call.skip_channels),
                             call.skip_channels % kCount == 0,
                             !call.norm_before_gate};
    Values<kCount> held[kHeld > 0 ? kHeld : 1];
    float factor = 1.0F;
    if constexpr (kHeld > 0) {
#pragma unroll
        for (int p = 0; p < kHeld; ++p) {
            // A thread behind the group's end reads its last channels again: no branch stands between the loads.
            held[p] = row.input(first + min(mine + p * step, size - kCount));
        }
    }
    if (call.weight != nullptr) {
        float sum = 0.0F;
        const auto add = [&](const Values<kCount>& v) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) sum = fmaf(v.at[i], v.at[i], sum);
        };
        if constexpr (kHeld > 0) {
#pragma unroll
            for (int p = 0; p < kHeld; ++p) {
                if (mine + p * step < size) add(held[p]);
            }
        } else {
            for (unsigned c = mine; c < size; c += step) add(row.input(first + c));
        }
        if (blockDim.y == 1) {
            sum = block_sum(sum, scratch);
        } else {
            for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
        }
        factor = 1.0F / sqrtf(sum / static_cast<float>(size) + call.eps);
    }
    if constexpr (kHeld > 0) {
#pragma unroll
        for (int p = 0; p < kHeld; ++p) {
            if (mine + p * step < size) row.finish(held[p], factor, first, mine + p * step);
        }
    } else {
        for (unsigned c = mine; c < size; c += step) row.finish(row.input(first + c), factor, first, c);
    }
}

template <class T>
auto kernel_for(bool four, std::int64_t group_size) {
    if (!four) return read_out_kernel<T, 1, 0>;
    if (group_size <= 2 * 4 * 32) return read_out_kernel<T, 4, 2>;
    const bool held = group_size >= kWideGroup && group_size <= kWideHeld * 4 * kWideThreads;
    return held ? read_out_kernel<T, 4, kWideHeld> : read_out_kernel<T, 4, 0>;
}

void require_groups(const ReadOut& call) {
    const bool fits =
        call.group_size > 0 && call.channels % call.group_size == 0 &&
        (call.weight == nullptr || call.weight_period == call.channels || call.weight_period == call.group_size) &&
        (call.x == nullptr || (call.skip_channels > 0 && call.channels % call.skip_channels == 0));
    if (fits) return;
    throw InternalError("read_out: groups of " + std::to_string(call.group_size) + " with " +
                        std::to_string(call.weight_period) + " weights, or a skip for " +
                        std::to_string(call.skip_channels) + " channels, do not fit " + std::to_string(call.channels) +
                        " channels");
}

}  // namespace

void read_out(Operand operand, const ReadOut& call, cudaStream_t stream) {
    require_groups(call);
    if (call.rows == 0) return;
    const auto groups = static_cast<unsigned>(call.channels / call.group_size);
    const bool wide_group = call.group_size >= kWideGroup;
    const std::int64_t wanted = (call.group_size / (4 * kWideHeld) + 31) / 32 * 32;
    const dim3 threads =
        wide_group ? dim3(static_cast<unsigned>(std::min(wanted, kWideThreads)), 1) : dim3(32, kWarpGroups);
    const dim3 blocks(static_cast<unsigned>(call.rows), (groups + threads.y - 1) / threads.y);
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool four = call.group_size % 4 == 0 && fours(call.o, call.channels, sizeof(T)) &&
                          fours(call.x, call.x_stride, sizeof(T)) && fours(call.gate, call.gate_stride, sizeof(T)) &&
                          fours(call.weight, 0, sizeof(float));
        const auto kernel = kernel_for<T>(four, call.group_size);
        kernel<<<blocks, threads, 0, stream>>>(call, groups);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

}  // namespace fenwick::cuda
