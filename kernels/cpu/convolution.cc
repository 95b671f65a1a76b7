#include "kernels/convolution.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/errors.h"
#include "kernels/threads.h"
#include "kernels/vector_math.h"

namespace fenwick {
namespace {

constexpr std::int64_t kChannelBlock = 256;  // taps and bias of a block stay in the first-level cache

/// A block of channels with its taps turned to [width, channels], so that loops run over neighbouring channels.
struct ChannelBlock {
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::array<std::array<float, kChannelBlock>, kMaxConvolutionWidth> taps{};
    std::array<float, kChannelBlock> bias{};
};

void load_block(const Convolution& convolution, std::int64_t first, ChannelBlock& block) {
    block.first = first;
    block.count = std::min(kChannelBlock, convolution.channels - first);
    for (std::int64_t c = 0; c < block.count; ++c) {
        const float* weight = convolution.weight + (first + c) * convolution.width;
        for (std::int64_t w = 0; w < convolution.width; ++w) block.taps[w][c] = weight[w];
        block.bias[c] = convolution.bias == nullptr ? 0.0F : convolution.bias[first + c];
    }
}

template <int kWidth, bool kSilu>
void convolve_row(const ChannelBlock& block, const std::array<const float*, kMaxConvolutionWidth>& rows,
                  float* __restrict__ y) {
    for (std::int64_t c = 0; c < block.count; ++c) {
        float sum = block.bias[c];
        for (int w = 0; w < kWidth; ++w) sum = __builtin_fmaf(block.taps[w][c], rows[w][c], sum);
        y[c] = kSilu ? vsilu(sum) : sum;
    }
}

using RowKernel = void (*)(const ChannelBlock&, const std::array<const float*, kMaxConvolutionWidth>&, float*);

template <bool kSilu>
constexpr std::array<RowKernel, kMaxConvolutionWidth> kRowKernels = {
    convolve_row<1, kSilu>, convolve_row<2, kSilu>, convolve_row<3, kSilu>, convolve_row<4, kSilu>,
    convolve_row<5, kSilu>, convolve_row<6, kSilu>, convolve_row<7, kSilu>, convolve_row<8, kSilu>};

void require_shapes(const Convolution& convolution, MatrixView<const float> halo, MatrixView<const float> x,
                    MatrixView<const float> y) {
    const bool width_fits = convolution.width >= 1 && convolution.width <= kMaxConvolutionWidth;
    const bool halo_fits =
        halo.data == nullptr || (halo.rows == convolution.width - 1 && halo.cols == convolution.channels);
    if (width_fits && halo_fits && x.rows == y.rows && x.cols == convolution.channels && y.cols == x.cols) return;
    throw InternalError(
        fmt::format("causal_convolution: width {}, channels {}, halo [{}, {}], x [{}, {}] and y [{}, {}] do not fit",
                    convolution.width, convolution.channels, halo.rows, halo.cols, x.rows, x.cols, y.rows, y.cols));
}

}  // namespace

void causal_convolution(const Convolution& convolution, MatrixView<const float> halo, MatrixView<const float> x,
                        MatrixView<float> y, int threads) {
    require_shapes(convolution, halo, x, y);
    static constexpr std::array<float, kChannelBlock> kZeros{};
    const RowKernel kernel = (convolution.silu ? kRowKernels<true> : kRowKernels<false>)[convolution.width - 1];
    const std::int64_t before = convolution.width - 1;
    parallel_rows(x.rows, threads, [&](std::int64_t first, std::int64_t last) {
        ChannelBlock block;
        for (std::int64_t channel = 0; channel < convolution.channels; channel += kChannelBlock) {
            load_block(convolution, channel, block);
            for (std::int64_t t = first; t < last; ++t) {
                std::array<const float*, kMaxConvolutionWidth> rows{};
                for (std::int64_t w = 0; w <= before; ++w) {
                    const std::int64_t source = t - before + w;
                    if (source >= 0) {
                        rows[w] = x.row(source) + channel;
                    } else {
                        rows[w] = halo.data == nullptr ? kZeros.data() : halo.row(source + before) + channel;
                    }
                }
                kernel(block, rows, y.row(t) + channel);
            }
        }
    });
}

}  // namespace fenwick
