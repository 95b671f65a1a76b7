#include "worker/training/parameters.h"

#include "core/errors.h"

namespace fenwick {

void ParameterList::add(const std::string& name, std::vector<std::int64_t> shape, float* values, bool decayed) const {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) size *= extent;
    all_.push_back({prefix_ + name, std::move(shape), values, size, decayed});
}

void ParameterList::add_linear(const std::string& name, Linear& linear) const {
    add(name + ".weight", {linear.outputs, linear.inputs}, linear.weight.data(), true);
    if (linear.bias.size() > 0) add(name + ".bias", {linear.outputs}, linear.bias.data(), false);
}

void ParameterList::add_stacked(Linear& all, std::initializer_list<std::pair<const char*, std::int64_t>> parts) const {
    std::int64_t row = 0;
    for (const auto& [name, outputs] : parts) {
        if (outputs == 0) continue;
        add(std::string(name) + ".weight", {outputs, all.inputs}, all.weight.data() + row * all.inputs, true);
        row += outputs;
    }
    if (row != all.outputs) {
        throw InternalError("parameters of " + prefix_ + ": parts of " + std::to_string(row) + " outputs, expected " +
                            std::to_string(all.outputs));
    }
}

std::int64_t parameter_floats(const std::vector<Parameter>& parameters) {
    std::int64_t floats = 0;
    for (const Parameter& parameter : parameters) floats += parameter.size;
    return floats;
}

}  // namespace fenwick
