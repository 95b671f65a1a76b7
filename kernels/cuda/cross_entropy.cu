#include <algorithm>
#include <limits>

#include "core/fenwick.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/logits_tile.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

constexpr int kRowsOfBlock = 8;                               // a warp a row
constexpr int kHeld = static_cast<int>(kVocabTile) / 32 / 4;  // accesses of a lane, four logits each, in registers

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
    running[row] = state;
    if (!last) return;
    const double loss = static_cast<double>(maximum) + log(state.sum) - static_cast<double>(state.target);
    nll[row] = targets[row] < 0 ? 0.0F : static_cast<float>(loss);
}

}  // namespace

std::int64_t vocab_tile_width(std::int64_t vocab) {
    const std::int64_t tiles = (vocab + kVocabTile - 1) / kVocabTile;
    return ((vocab + tiles - 1) / tiles + 63) / 64 * 64;
}

void form_logits(const CrossEntropyCall& call, const LogitsTile& tile, Matmul& matmul, void* matmul_workspace,
                 cudaStream_t stream) {
    const std::int64_t element = operand_size(call.operand);
    MatmulCall product;
    product.operand = call.operand;
    product.output = Operand::kFp32;
    product.x = static_cast<const char*>(call.h) + tile.row * call.hidden * element;
    product.weight = static_cast<const char*>(call.lm_head) + tile.first * call.hidden * element;
    product.y = tile.logits;
    product.rows = tile.rows;
    product.n = tile.count;
    product.k = call.hidden;
    product.x_stride = call.hidden;
    product.y_stride = tile.width;
    matmul.multiply(product, matmul_workspace, stream);
}

void add_logits(const CrossEntropyCall& call, const LogitsTile& tile, RunningSum* running, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>((tile.rows + kRowsOfBlock - 1) / kRowsOfBlock);
    add_tile_kernel<<<blocks, dim3(32, kRowsOfBlock), 0, stream>>>(
        tile.logits, tile.width, tile.first, static_cast<int>(tile.count), tile.first + tile.count == call.vocab,
        call.targets + tile.row, running, call.nll + tile.row, static_cast<int>(tile.rows));
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

std::size_t cross_entropy_workspace_bytes(std::int64_t vocab) {
    return static_cast<std::size_t>(kLossRows) *
           (static_cast<std::size_t>(vocab_tile_width(vocab)) * sizeof(float) + sizeof(RunningSum));
}

void cross_entropy(const CrossEntropyCall& call, Matmul& matmul, void* workspace, void* matmul_workspace,
                   cudaStream_t stream) {
    LogitsTile tile;
    tile.width = vocab_tile_width(call.vocab);
    tile.logits = static_cast<float*>(workspace);
    auto* running = reinterpret_cast<RunningSum*>(tile.logits + kLossRows * tile.width);
    for (tile.row = 0; tile.row < call.rows; tile.row += kLossRows) {
        tile.rows = std::min(kLossRows, call.rows - tile.row);
        for (tile.first = 0; tile.first < call.vocab; tile.first += tile.width) {
            tile.count = std::min(tile.width, call.vocab - tile.first);
            form_logits(call, tile, matmul, matmul_workspace, stream);
            add_logits(call, tile, running, stream);
        }
    }
}

}  // namespace fenwick::cuda
