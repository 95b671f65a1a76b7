#include <algorithm>

#include "core/fenwick.h"
#include "kernels/cuda/backward/cross_entropy.h"
#include "kernels/cuda/logits_tile.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 128;

/// d logit = exp(logit - maximum) * factor, less `scale` at the target. Rows without a target, rows behind `rows` and
/// columns behind `count` are 0.
template <class T>
__global__ void gradient_kernel(const float* logits, std::int64_t width, std::int64_t first, std::int64_t count,
                                const std::int32_t* targets, const RunningSum* running, CrossEntropyOptions options,
                                std::int64_t rows, T* out) {
    const std::int64_t row = blockIdx.x;
    T* to = out + row * width;
    if (row >= rows || targets[row] < 0) {
        for (std::int64_t c = threadIdx.x; c < width; c += kThreads) to[c] = from_float<T>(0.0F);
        return;
    }
    const RunningSum state = running[row];
    const double log_sum = static_cast<double>(state.maximum) + log(state.sum);
    const double outer =
        static_cast<double>(options.scale) * (1.0 + 2.0 * static_cast<double>(options.z_loss) * log_sum);
    const auto factor = static_cast<float>(outer / state.sum);
    const std::int64_t target = targets[row] - first;
    for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
        float d = 0.0F;
        if (c < count) {
            d = expf(logits[row * width + c] - state.maximum) * factor;
            if (c == target) d -= options.scale;
        }
        to[c] = from_float<T>(d);
    }
}

std::int64_t whole_blocks(std::int64_t rows) {
    return (rows + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}

/// The parts of the workspace.
struct Parts {
    float* logits;
    void* d_logits;
    RunningSum* running;
};

Parts parts_of(void* workspace, Operand operand, std::int64_t width) {
    auto* bytes = static_cast<unsigned char*>(workspace);
    unsigned char* d_logits = bytes + kLossRows * width * static_cast<std::int64_t>(sizeof(float));
    return {reinterpret_cast<float*>(bytes), d_logits,
            reinterpret_cast<RunningSum*>(d_logits + kLossRows * width * operand_size(operand))};
}

/// d_h (+)= d_logits W, d_lm_head += d_logits^T h for one tile.
void multiply_gradients(const CrossEntropyBackward& call, const LogitsTile& tile, void* d_logits, bool add,
                        Matmul& matmul, void* matmul_workspace, cudaStream_t stream) {
    const CrossEntropyCall& f = call.forward;
    const std::int64_t element = operand_size(f.operand);
    MatmulCall input;
    input.operand = f.operand;
    input.output = Operand::kFp32;
    input.x = d_logits;
    input.weight = static_cast<const char*>(f.lm_head) + tile.first * f.hidden * element;
    input.weight_by_inputs = true;
    input.y = call.d_h + tile.row * f.hidden;
    input.rows = tile.rows;
    input.n = f.hidden;
    input.k = tile.count;
    input.x_stride = tile.width;
    input.y_stride = f.hidden;
    input.accumulate = add;
    matmul.multiply(input, matmul_workspace, stream);

    WeightGradientCall weight;
    weight.operand = f.operand;
    weight.dy = d_logits;
    weight.x = const_cast<char*>(static_cast<const char*>(f.h)) + tile.row * f.hidden * element;
    weight.d_weight = call.d_lm_head + tile.first * f.hidden;
    weight.rows = tile.rows;
    weight.n = tile.count;
    weight.k = f.hidden;
    weight.dy_stride = tile.width;
    weight.x_stride = f.hidden;
    matmul.add_weight_gradient(weight, matmul_workspace, stream);
}

}  // namespace

std::size_t cross_entropy_backward_workspace_bytes(Operand operand, std::int64_t vocab) {
    return static_cast<std::size_t>(kLossRows) *
           (static_cast<std::size_t>(vocab_tile_width(vocab)) *
                (sizeof(float) + static_cast<std::size_t>(operand_size(operand))) +
            sizeof(RunningSum));
}

void cross_entropy_with_gradient(const CrossEntropyBackward& call, Matmul& matmul, void* workspace,
                                 void* matmul_workspace, cudaStream_t stream) {
    const CrossEntropyCall& f = call.forward;
    LogitsTile tile;
    tile.width = vocab_tile_width(f.vocab);
    const Parts parts = parts_of(workspace, f.operand, tile.width);
    tile.logits = parts.logits;
    const std::int64_t last = (f.vocab - 1) / tile.width * tile.width;
    for (tile.row = 0; tile.row < f.rows; tile.row += kLossRows) {
        tile.rows = std::min(kLossRows, f.rows - tile.row);
        for (tile.first = 0; tile.first < f.vocab; tile.first += tile.width) {
            tile.count = std::min(tile.width, f.vocab - tile.first);
            form_logits(f, tile, matmul, matmul_workspace, stream);
            add_logits(f, tile, parts.running, stream);
        }
        // From the last tile, whose logits are still there, to the first.
        for (tile.first = last; tile.first >= 0; tile.first -= tile.width) {
            tile.count = std::min(tile.width, f.vocab - tile.first);
            if (tile.first != last) form_logits(f, tile, matmul, matmul_workspace, stream);
            with_operand(f.operand, [&](auto tag) {
                using T = typename decltype(tag)::Type;
                gradient_kernel<T><<<static_cast<unsigned>(whole_blocks(tile.rows)), kThreads, 0, stream>>>(
                    tile.logits, tile.width, tile.first, tile.count, f.targets + tile.row, parts.running, call.options,
                    tile.rows, static_cast<T*>(parts.d_logits));
                FENWICK_CUDA_CHECK(cudaGetLastError());
            });
            multiply_gradients(call, tile, parts.d_logits, tile.first != last, matmul, matmul_workspace, stream);
        }
    }
}

}  // namespace fenwick::cuda
