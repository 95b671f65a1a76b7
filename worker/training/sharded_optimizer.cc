#include "worker/training/sharded_optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fenwick {
namespace {

std::span<float> span_of(Buffer<float>& buffer) {
    return {buffer.data(), static_cast<std::size_t>(buffer.size())};
}

std::span<const float> span_of(const Buffer<float>& buffer) {
    return {buffer.data(), static_cast<std::size_t>(buffer.size())};
}

Buffer<float> zeros(std::int64_t size) {
    Buffer<float> buffer(size);
    std::fill(buffer.begin(), buffer.end(), 0.0F);
    return buffer;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::vector<Parameter> parameters, Communicator& world, int threads)
    : parameters_(std::move(parameters)),
      world_(world),
      threads_(threads),
      total_(parameter_floats(parameters_)),
      own_(slice_of(total_, world.size(), world.rank())),
      runs_(slice_runs(parameters_, own_)),
      gradient_(own_.size),
      values_(own_.size),
      exp_avg_(zeros(own_.size)),
      exp_avg_sq_(zeros(own_.size)) {
    for_parts(parameters_, own_,
              [&](const Parameter& parameter, std::int64_t first, std::int64_t place, std::int64_t count) {
                  std::copy_n(parameter.values + first, count, values_.data() + place);
              });
}

double ShardedOptimizer::reduce(Gradients& gradients) {
    reduce_scatter_sum(world_, gradients.all(), span_of(gradient_));
    double sum = squared_norm(gradient_.data(), own_.size, threads_);
    all_sum(world_, std::span(&sum, 1));
    return std::sqrt(sum);
}

void ShardedOptimizer::step(const AdamW& hyper, std::int64_t update, float gradient_scale, Gradients& gradients) {
    for (const SliceRun& run : runs_) {
        adamw_step(hyper, update, gradient_scale,
                   {run.size, gradient_.data() + run.first, values_.data() + run.first, exp_avg_.data() + run.first,
                    exp_avg_sq_.data() + run.first, run.decayed},
                   threads_);
    }
    publish(gradients);
}

CheckpointSlice ShardedOptimizer::slice() const {
    return {span_of(values_), span_of(exp_avg_), span_of(exp_avg_sq_)};
}

void ShardedOptimizer::restore(const TrainingCheckpoint& checkpoint) {
    checkpoint.read(own_.first, span_of(values_), span_of(exp_avg_), span_of(exp_avg_sq_));
}

void ShardedOptimizer::publish(Gradients& gradients) {
    all_gather_slices(world_, span_of(values_), gradients.all());
    const float* next = gradients.all().data();
    for (const Parameter& parameter : parameters_) {
        std::copy_n(next, parameter.size, parameter.values);
        next += parameter.size;
    }
}

std::vector<ParameterPlace> parameter_table(std::span<const Parameter> parameters) {
    std::vector<ParameterPlace> table;
    std::int64_t offset = 0;
    for (const Parameter& parameter : parameters) {
        table.push_back({parameter.name, parameter.shape, offset});
        offset += parameter.size;
    }
    return table;
}

}  // namespace fenwick
