// The trainable numbers of a model, tensor by tensor, as a checkpoint has them. One flat vector in the order of
// `Model::parameters()` is what optimisers, checkpoints and ranks share: parameter i lies at the sum of the sizes
// before it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "worker/weights.h"

namespace fenwick {

struct Parameter {
    std::string name;                 ///< as in the checkpoint (flash-linear-attention's)
    std::vector<std::int64_t> shape;  ///< as in the checkpoint
    float* values = nullptr;          ///< [size], row-major, in the model's own memory
    std::int64_t size = 0;
    bool decayed = false;  ///< takes weight decay: matrices do; norms, biases, A_log, dt_bias, D, L, embeddings do not
};

/// Where a layer's parts list their parameters, each under its prefix.
class ParameterList {
public:
    explicit ParameterList(std::vector<Parameter>& all, std::string prefix = "")
        : all_(all), prefix_(std::move(prefix)) {}
    [[nodiscard]] ParameterList under(const std::string& more) const { return ParameterList(all_, prefix_ + more); }

    /// `shape`'s product is the number of values.
    void add(const std::string& name, std::vector<std::int64_t> shape, float* values, bool decayed) const;
    /// `name`.weight, and `name`.bias where there is one.
    void add_linear(const std::string& name, Linear& linear) const;
    /// The layers that `stack_rows` made one of, by name and outputs, in its order. Throws InternalError when their
    /// outputs are not the whole.
    void add_stacked(Linear& all, std::initializer_list<std::pair<const char*, std::int64_t>> parts) const;

private:
    std::vector<Parameter>& all_;
    std::string prefix_;
};

/// Sum of the sizes: the length of the flat vector.
[[nodiscard]] std::int64_t parameter_floats(const std::vector<Parameter>& parameters);

}  // namespace fenwick
