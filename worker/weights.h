// Reading one model's tensors by name, with the prefix of a layer.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/json.h"
#include "core/tensor.h"

namespace fenwick {

/// A Linear layer's weight [outputs, inputs] and optional bias [outputs], fp32.
struct Linear {
    Buffer<float> weight;
    Buffer<float> bias;  ///< empty: none
    std::int64_t outputs = 0;
    std::int64_t inputs = 0;

    [[nodiscard]] MatrixView<const float> matrix() const { return weight.matrix(outputs, inputs); }
    [[nodiscard]] const float* bias_or_null() const { return bias.size() == 0 ? nullptr : bias.data(); }
    [[nodiscard]] double flops() const { return 2.0 * static_cast<double>(outputs) * static_cast<double>(inputs); }
};

/// The tensors under one prefix ("model.layers.3."), and the configuration that says their shapes.
/// All loads throw DataError naming file, tensor, expected and found shape.
class WeightReader {
public:
    WeightReader(Checkpoint& checkpoint, const ConfigReader& config, std::string prefix)
        : checkpoint_(checkpoint), config_(config), prefix_(std::move(prefix)) {}

    [[nodiscard]] const ConfigReader& config() const { return config_; }
    [[nodiscard]] WeightReader under(const std::string& more) const { return {checkpoint_, config_, prefix_ + more}; }

    [[nodiscard]] bool has(const std::string& name) const { return checkpoint_.has(prefix_ + name); }
    /// The shape that the checkpoint has for `name`.
    [[nodiscard]] const std::vector<std::int64_t>& shape(const std::string& name) const {
        return checkpoint_.info(prefix_ + name).shape;
    }
    [[nodiscard]] Buffer<float> load(const std::string& name, std::initializer_list<std::int64_t> shape) const {
        return checkpoint_.load_f32(prefix_ + name, std::vector<std::int64_t>(shape));
    }
    /// `name`.weight, and `name`.bias when `with_bias`.
    [[nodiscard]] Linear linear(const std::string& name, std::int64_t outputs, std::int64_t inputs,
                                bool with_bias = false) const {
        Linear layer;
        layer.weight = load(name + ".weight", {outputs, inputs});
        if (with_bias) layer.bias = load(name + ".bias", {outputs});
        layer.outputs = outputs;
        layer.inputs = inputs;
        return layer;
    }

private:
    Checkpoint& checkpoint_;
    const ConfigReader& config_;
    std::string prefix_;
};

/// Several Linear layers without bias over the same input as one: outputs one after the other.
[[nodiscard]] Linear stack_rows(std::initializer_list<const Linear*> parts);

}  // namespace fenwick
