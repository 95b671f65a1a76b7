#include "kernels/backward/convolution.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/errors.h"
#include "kernels/cpu/backward/column_sums.h"
#include "kernels/cpu/backward/slopes.h"
#include "kernels/threads.h"

namespace fenwick {
namespace {

// Channels of one task, which walks all rows: many, so that a row's are worth a page of their own, but a share for
// every thread. A channel's values do not depend on its neighbours.
constexpr std::int64_t kChannelBlock = 256;
constexpr std::int64_t kLeastChannels = 64;

std::int64_t channels_of_task(std::int64_t channels, int threads) {
    const std::int64_t share = (channels / std::max(threads, 1) + 15) / 16 * 16;
    return std::clamp(share, kLeastChannels, kChannelBlock);
}

using Channels = std::array<float, kChannelBlock>;
using Window = std::array<const float*, kMaxConvolutionWidth>;

/// A block of channels: taps turned to [width, channels], the window of gradients before SiLU, and the sums.
struct ChannelBlock {
    std::int64_t count = 0;
    std::array<Channels, kMaxConvolutionWidth> taps{};
    Channels bias{};
    std::array<Channels, kMaxConvolutionWidth> before_silu{};  // of row t at t % width
    std::array<Channels, kMaxConvolutionWidth> tap_high{}, tap_low{};
    Channels bias_high{}, bias_low{};
};

void load_block(const Convolution& convolution, std::int64_t first, std::int64_t most, ChannelBlock& block) {
    block.count = std::min(most, convolution.channels - first);
    for (std::int64_t c = 0; c < block.count; ++c) {
        const float* weight = convolution.weight + (first + c) * convolution.width;
        for (std::int64_t w = 0; w < convolution.width; ++w) block.taps[w][c] = weight[w];
        block.bias[c] = convolution.bias == nullptr ? 0.0F : convolution.bias[first + c];
    }
}

/// The gradient of the sum before SiLU of row t, whose taps meet the rows of `window`; adds to the sums of taps, bias.
void meet_row(const Convolution& convolution, const Window& window, const float* dy, std::int64_t t,
              ChannelBlock& block) {
    Channels& d = block.before_silu[t % convolution.width];
    std::copy_n(dy, block.count, d.begin());
    if (convolution.silu) {
        Channels sum = block.bias;
        for (std::int64_t w = 0; w < convolution.width; ++w) {
#pragma GCC ivdep
            for (std::int64_t c = 0; c < block.count; ++c) {
                sum[c] = __builtin_fmaf(block.taps[w][c], window[w][c], sum[c]);
            }
        }
#pragma GCC ivdep
        for (std::int64_t c = 0; c < block.count; ++c) d[c] *= silu_slope(sum[c]);
    }
    for (std::int64_t w = 0; w < convolution.width; ++w) {
#pragma GCC ivdep
        for (std::int64_t c = 0; c < block.count; ++c) {
            add_exactly(d[c] * window[w][c], block.tap_high[w][c], block.tap_low[w][c]);
        }
    }
#pragma GCC ivdep
    for (std::int64_t c = 0; c < block.count; ++c) add_exactly(d[c], block.bias_high[c], block.bias_low[c]);
}

/// Gradient of row `source` (negative: of the halo): row source + i took it through tap width - 1 - i.
void leave_row(std::int64_t width, std::int64_t source, std::int64_t rows, const ChannelBlock& block, float* out) {
    Channels sum{};
    for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t taker = source + i;
        if (taker < 0 || taker >= rows) continue;
        const Channels& d = block.before_silu[taker % width];
        const Channels& taps = block.taps[width - 1 - i];
#pragma GCC ivdep
        for (std::int64_t c = 0; c < block.count; ++c) sum[c] = __builtin_fmaf(taps[c], d[c], sum[c]);
    }
    std::copy_n(sum.begin(), block.count, out);
}

void require_shapes(const Convolution& convolution, MatrixView<const float> halo, MatrixView<const float> x,
                    MatrixView<const float> dy, const ConvolutionGradients& gradients) {
    const auto halo_fits = [&](const float* data, std::int64_t rows, std::int64_t cols) {
        return data == nullptr || (rows == convolution.width - 1 && cols == convolution.channels);
    };
    const auto rows_fit = [&](std::int64_t rows, std::int64_t cols) {
        return rows == x.rows && cols == convolution.channels;
    };
    const MatrixView<float>& d_halo = gradients.halo;
    if (convolution.width >= 1 && convolution.width <= kMaxConvolutionWidth && rows_fit(x.rows, x.cols) &&
        rows_fit(dy.rows, dy.cols) && rows_fit(gradients.x.rows, gradients.x.cols) &&
        halo_fits(halo.data, halo.rows, halo.cols) && halo_fits(d_halo.data, d_halo.rows, d_halo.cols)) {
        return;
    }
    throw InternalError(fmt::format(
        "causal_convolution_backward: width {}, channels {}, halo [{}, {}], x [{}, {}], dy [{}, {}] and gradients of "
        "halo [{}, {}] and x [{}, {}] do not fit",
        convolution.width, convolution.channels, halo.rows, halo.cols, x.rows, x.cols, dy.rows, dy.cols, d_halo.rows,
        d_halo.cols, gradients.x.rows, gradients.x.cols));
}

}  // namespace

void causal_convolution_backward(const Convolution& convolution, MatrixView<const float> halo,
                                 MatrixView<const float> x, MatrixView<const float> dy,
                                 const ConvolutionGradients& gradients, int threads) {
    require_shapes(convolution, halo, x, dy, gradients);
    static constexpr Channels kZeros{};
    const std::int64_t width = convolution.width;
    const std::int64_t before = width - 1;
    const std::int64_t most = channels_of_task(convolution.channels, threads);
    parallel_tasks((convolution.channels + most - 1) / most, threads, [&](std::int64_t task, int) {
        const std::int64_t first = task * most;
        ChannelBlock block;
        load_block(convolution, first, most, block);
        const auto leave = [&](std::int64_t source) {
            if (source >= 0) {
                leave_row(width, source, x.rows, block, gradients.x.row(source) + first);
            } else if (gradients.halo.data != nullptr) {
                leave_row(width, source, x.rows, block, gradients.halo.row(source + before) + first);
            }
        };
        // A row's gradient is written once all rows that took it have been met: behind the walk, so that it may lie
        // where dy lies.
        for (std::int64_t t = 0; t < x.rows; ++t) {
            Window window{};
            for (std::int64_t w = 0; w < width; ++w) {
                const std::int64_t source = t - before + w;
                if (source >= 0) {
                    window[w] = x.row(source) + first;
                } else {
                    window[w] = halo.data == nullptr ? kZeros.data() : halo.row(source + before) + first;
                }
            }
            meet_row(convolution, window, dy.row(t) + first, t, block);
            leave(t - before);
        }
        for (std::int64_t source = x.rows - before; source < x.rows; ++source) leave(source);
        for (std::int64_t c = 0; c < block.count; ++c) {
            for (std::int64_t w = 0; w < width; ++w) {
                gradients.weight[(first + c) * width + w] += block.tap_high[w][c] + block.tap_low[w][c];
            }
            if (gradients.bias != nullptr) gradients.bias[first + c] += block.bias_high[c] + block.bias_low[c];
        }
    });
}

}  // namespace fenwick
