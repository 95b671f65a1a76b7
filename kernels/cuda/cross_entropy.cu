#include <algorithm>
#include <limits>

#include "core/fenwick.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

constexpr int kRowsOfBlock = 8;                               // a warp a row
constexpr int kHeld = static_cast<int>(kVocabTile) / 32 / 4;  // accesses of a lane, four logits each, in registers

/// What has been seen of one row's logits.
struct RunningSum {
    double sum;  // of exp(logit - maximum)
    float maximum;
    float target;
};

std::int64_t tile_width(std::int64_t vocab) {
    const std::int64_t tiles = (vocab + kVocabTile - 1) / kVocabTile;
    return ((vocab + tiles - 1) / tiles + 63) / 64 * 64;  // even tiles: no sliver is left
}

/// One warp a row: adds `count` logits, of the vocabulary from `first` on. The last tile writes the loss.
__global__ void add_tile_kernel(const float* logits, std::int64_t stride, std::int64_t first, int count, bool last,
                                const std::int32_t* targets, RunningSum* running, float* nll, int rows) {
    const int row = static_cast<int>(blockIdx.x) * kRowsOfBlock + static_cast<int>(threadIdx.y);
    if (row >= rows) return;
    const float* values = logits + row * stride;
    const int lane = static_cast<int>(threadIdx.x);
    Values<4> held[kHeld];
    float maximum = -INFINITY;
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
        const int c = (p * 32 + lane) * 4;
        held[p] = c < count ? load_values<4>(values + c) : Values<4>{};  // the tile's memory goes on behind `count`
    }
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if ((p * 32 + lane) * 4 + i < count) maximum = fmaxf(maximum, held[p].at[i]);
        }
    }
    RunningSum state{0.0, -INFINITY, NAN};
    if (first > 0) state = running[row];
    for (int offset = 16; offset > 0; offset /= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFU, maximum, offset));
    }
    maximum = fmaxf(maximum, state.maximum);
    float sum = 0.0F;
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float logit = held[p].at[i];
            // exp alone would hide an infinite logit behind a 0.
            if ((p * 32 + lane) * 4 + i < count) sum += fmaf(logit, 0.0F, expf(logit - maximum));
        }
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
    if (lane != 0) return;
    // The first tile rescales nothing; a maximum of -inf gives NaN in the sum.
    const float rescale = state.maximum == maximum ? 1.0F : expf(state.maximum - maximum);
    state.sum = state.sum * static_cast<double>(rescale) + static_cast<double>(sum);
    state.maximum = maximum;
    const std::int64_t target = targets[row] - first;
    if (target >= 0 && target < count) state.target = values[target];
    if (last) {
        nll[row] =
            static_cast<float>(static_cast<double>(maximum) + log(state.sum) - static_cast<double>(state.target));
    } else {
        running[row] = state;
    }
}

}  // namespace

std::size_t cross_entropy_workspace_bytes(std::int64_t vocab) {
    return static_cast<std::size_t>(kLossRows) *
           (static_cast<std::size_t>(tile_width(vocab)) * sizeof(float) + sizeof(RunningSum));
}

void cross_entropy(const CrossEntropyCall& call, Matmul& matmul, void* workspace, void* matmul_workspace,
                   cudaStream_t stream) {
    const std::int64_t width = tile_width(call.vocab);
    auto* logits = static_cast<float*>(workspace);
    auto* running = reinterpret_cast<RunningSum*>(logits + kLossRows * width);
    const std::int64_t element = operand_size(call.operand);
    for (std::int64_t row = 0; row < call.rows; row += kLossRows) {
        const std::int64_t rows = std::min(kLossRows, call.rows - row);
        for (std::int64_t first = 0; first < call.vocab; first += width) {
            const std::int64_t count = std::min(width, call.vocab - first);
            MatmulCall product;
            product.operand = call.operand;
            product.output = Operand::kFp32;
            product.x = static_cast<const char*>(call.h) + row * call.hidden * element;
            product.weight = static_cast<const char*>(call.lm_head) + first * call.hidden * element;
            product.y = logits;
            product.rows = rows;
            product.n = count;
            product.k = call.hidden;
            product.x_stride = call.hidden;
            product.y_stride = width;
            matmul.multiply(product, matmul_workspace, stream);
            const auto blocks = static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock);
            add_tile_kernel<<<blocks, dim3(32, kRowsOfBlock), 0, stream>>>(
                logits, width, first, static_cast<int>(count), first + count == call.vocab, call.targets + row, running,
                call.nll + row, static_cast<int>(rows));
            FENWICK_CUDA_CHECK(cudaGetLastError());
        }
    }
}

}  // namespace fenwick::cuda
