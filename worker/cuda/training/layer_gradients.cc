#include "worker/cuda/training/layer_gradients.h"

#include <variant>

namespace fenwick::cuda {
namespace {

class Places {
public:
    Places(const FlatPlaces& places, float* flat) : places_(places), flat_(flat) {}
    [[nodiscard]] float* of(const float* value) const { return value == nullptr ? nullptr : flat_ + places_.of(value); }
    [[nodiscard]] float* of(const Buffer<float>& values) const {
        return values.size() == 0 ? nullptr : of(values.data());
    }
    /// Null where it is not trained.
    [[nodiscard]] float* of_trained(const float* value) const {
        return value == nullptr || !places_.find(value) ? nullptr : of(value);
    }

private:
    const FlatPlaces& places_;
    float* flat_;
};

void take(const Places& places, const Mamba2Steps& steps, LayerGradients& to) {
    to.dt_bias = places.of(steps.gates.dt_bias);
    to.a_log = places.of(steps.gates.a_log);
    to.level_scale = places.of(steps.level_scale);
    to.skip = places.of(steps.skip);
    to.norm = places.of(steps.norm);
}

void take(const Places& places, const GatedDeltaSteps& steps, LayerGradients& to) {
    to.dt_bias = places.of(steps.gates.dt_bias);
    to.a_log = places.of(steps.gates.a_log);
    to.level_scale = places.of(steps.level_scale);
    to.norm = places.of(steps.norm);
}

}  // namespace

LayerGradients gradients_of(const LayerParts& layer, const FlatPlaces& flat_places, float* flat) {
    const Places places(flat_places, flat);
    const TokenMixer& mixer = *layer.mixer;
    LayerGradients to;
    to.mixer_norm = places.of(layer.mixer_norm);
    to.in_proj = places.of(mixer.in_proj().matrix().data);
    to.in_bias = places.of(mixer.in_proj().bias_or_null());
    to.out_proj = places.of(mixer.out_proj().matrix().data);
    to.out_bias = places.of(mixer.out_proj().bias_or_null());
    const Convolution convolution = mixer.convolution();
    to.conv_weight = places.of_trained(convolution.weight);
    to.conv_bias = places.of_trained(convolution.bias);
    std::visit([&](const auto& steps) { take(places, steps, to); }, mixer.steps());
    if (layer.mlp == nullptr) return to;
    to.mlp_norm = places.of(layer.mlp_norm);
    to.gate_up = places.of(layer.mlp->gate_up().matrix().data);
    to.down = places.of(layer.mlp->down().matrix().data);
    return to;
}

}  // namespace fenwick::cuda
