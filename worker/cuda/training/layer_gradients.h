// Where the gradients of a layer's parameters lie in the flat vector on the device.
#pragma once

#include "worker/families/families.h"
#include "worker/training/flat_places.h"

namespace fenwick::cuda {

/// Device pointers, fp32; shapes are the parameters'. Null where the layer has no such parameter, or none that is
/// trained.
struct LayerGradients {
    float* mixer_norm = nullptr;
    float* in_proj = nullptr;  ///< [outputs, inputs]: the stacked projections in their order
    float* in_bias = nullptr;
    float* out_proj = nullptr;
    float* out_bias = nullptr;
    float* conv_weight = nullptr;
    float* conv_bias = nullptr;
    float* dt_bias = nullptr;
    float* a_log = nullptr;
    float* level_scale = nullptr;
    float* skip = nullptr;
    float* norm = nullptr;
    float* mlp_norm = nullptr;
    float* gate_up = nullptr;
    float* down = nullptr;
};

/// `flat`: the gradients of all parameters on the device.
[[nodiscard]] LayerGradients gradients_of(const LayerParts& layer, const FlatPlaces& places, float* flat);

}  // namespace fenwick::cuda
