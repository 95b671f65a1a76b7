#include "worker/token_mixer.h"

#include <algorithm>

namespace fenwick {

Convolution TokenMixer::convolution() const {
    return {conv_weight_.data(), conv_bias_.size() == 0 ? nullptr : conv_bias_.data(), conv_channels_, conv_width_,
            true};
}

void TokenMixer::set_convolution(std::int64_t first_column, std::int64_t channels, std::int64_t width, bool with_bias) {
    conv_first_ = first_column;
    conv_channels_ = channels;
    conv_width_ = width;
    conv_weight_ = Buffer<float>(channels * width);
    std::fill(conv_weight_.begin(), conv_weight_.end(), 1.0F);  // width 1 without a convolution: SiLU(x)
    if (with_bias) conv_bias_ = Buffer<float>(channels);
}

void TokenMixer::load_convolution(const WeightReader& weights, const std::string& name, std::int64_t first_channel,
                                  std::int64_t channels, bool with_bias) {
    const Buffer<float> loaded = weights.load(name + ".weight", {channels, 1, conv_width_});
    std::copy(loaded.begin(), loaded.end(), conv_weight_.data() + first_channel * conv_width_);
    loaded_convolutions_.push_back({name, first_channel, channels});
    if (!with_bias) return;
    const Buffer<float> bias = weights.load(name + ".bias", {channels});
    std::copy(bias.begin(), bias.end(), conv_bias_.data() + first_channel);
}

void TokenMixer::list_convolutions(const ParameterList& list) {
    for (const LoadedConvolution& each : loaded_convolutions_) {
        list.add(each.name + ".weight", {each.channels, 1, conv_width_},
                 conv_weight_.data() + each.first_channel * conv_width_, true);
    }
    if (conv_bias_.size() == 0) return;
    for (const LoadedConvolution& each : loaded_convolutions_) {
        list.add(each.name + ".bias", {each.channels}, conv_bias_.data() + each.first_channel, false);
    }
}

}  // namespace fenwick
