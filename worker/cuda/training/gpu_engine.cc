#include "worker/cuda/training/gpu_engine.h"

#include <cmath>

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/vectors.h"
#include "parallel/collectives.h"
#include "parallel/cuda/device_group.h"

namespace fenwick::cuda {
namespace {

constexpr std::int64_t kResultBytes = 256;  // of the norm's buffer, before its workspace

std::unique_ptr<DeviceCommunicator> group_of(DeviceCommunicator& world, const TrainingRanks& ranks) {
    const int size = ranks.group().size();
    return std::make_unique<DeviceGroup>(world, ranks.group_number() * size, size);
}

std::span<float> span_of(Buffer<float>& buffer) {
    return {buffer.data(), static_cast<std::size_t>(buffer.size())};
}

}  // namespace

GpuEngine::GpuEngine(const std::shared_ptr<Model>& model, Communicator& world, const TrainingRanks& ranks,
                     Operand operand, std::unique_ptr<DeviceCommunicator> device, GpuBackpropOptions options)
    : model_(model),
      world_(world),
      parameters_(model_->parameters()),
      places_(parameters_),
      own_(slice_of(places_.total(), world.size(), world.rank())),
      runs_(slice_runs(parameters_, own_)),
      device_(std::move(device)),
      group_(group_of(*device_, ranks)),
      gradients_(places_.total(), memory_stream_.get()),
      own_gradient_(world.size() > 1 ? own_.size : 0, memory_stream_.get()),
      values_(own_.size, memory_stream_.get()),
      exp_avg_(own_.size, memory_stream_.get()),
      exp_avg_sq_(own_.size, memory_stream_.get()),
      norm_(kResultBytes + static_cast<std::int64_t>(squared_norm_workspace_bytes()), memory_stream_.get()),
      collectives_(*device_, places_.total()),
      backprop_(model_, places_, operand, ranks.group(), *group_, gradients_.data(), options) {
    memory_stream_.synchronize();  // what lies there is used in other streams
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(device_->stream()));
    for_parts(parameters_, own_,
              [&](const Parameter& parameter, std::int64_t first, std::int64_t place, std::int64_t count) {
                  give({parameter.values + first, static_cast<std::size_t>(count)}, values_.data() + place);
              });
    FENWICK_CUDA_CHECK(cudaMemsetAsync(exp_avg_.data(), 0, exp_avg_.bytes(), stream()));
    FENWICK_CUDA_CHECK(cudaMemsetAsync(exp_avg_sq_.data(), 0, exp_avg_sq_.bytes(), stream()));
    zero_gradients();
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream()));
}

GpuEngine::~GpuEngine() {
    (void)cudaStreamSynchronize(stream());  // nothing may still use what is given back now
    (void)cudaStreamSynchronize(device_->stream());
}

void GpuEngine::zero_gradients() {
    FENWICK_CUDA_CHECK(cudaMemsetAsync(gradients_.data(), 0, gradients_.bytes(), stream()));
}

double GpuEngine::reduce() {
    const float* own = gradients_.data();
    if (world_.size() > 1) {
        mark_.record(stream());
        mark_.make_wait(device_->stream());
        collectives_.reduce_scatter_sum(gradients_.data(), own_gradient_.data());
        mark_.record(device_->stream());
        mark_.make_wait(stream());
        own = own_gradient_.data();
    }
    auto* result = reinterpret_cast<double*>(norm_.data());
    squared_norm(own, own_.size, result, norm_.data() + kResultBytes, stream());
    double sum = 0.0;
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(&sum, result, sizeof(sum), cudaMemcpyDeviceToHost, stream()));
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream()));
    device_->check();
    all_sum(world_, std::span(&sum, 1));
    return std::sqrt(sum);
}

void GpuEngine::step(const AdamW& hyper, std::int64_t update, float gradient_scale) {
    const float* own = world_.size() > 1 ? own_gradient_.data() : gradients_.data();
    for (const SliceRun& run : runs_) {
        adamw_step(hyper, update, gradient_scale,
                   {run.size, own + run.first, values_.data() + run.first, exp_avg_.data() + run.first,
                    exp_avg_sq_.data() + run.first, run.decayed},
                   stream());
    }
    publish();
}

void GpuEngine::publish() {
    mark_.record(stream());
    mark_.make_wait(device_->stream());
    collectives_.all_gather_slices(values_.data(), gradients_.data());
    mark_.record(device_->stream());
    mark_.make_wait(stream());
    backprop_.refresh(gradients_.data());
}

std::optional<std::int64_t> GpuEngine::first_not_finite_gradient() {
    auto* result = reinterpret_cast<std::int64_t*>(norm_.data());
    find_not_finite(gradients_.data(), gradients_.size(), result, stream());
    std::int64_t first = 0;
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(&first, result, sizeof(first), cudaMemcpyDeviceToHost, stream()));
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream()));
    if (first == gradients_.size()) return std::nullopt;
    return first;
}

CheckpointSlice GpuEngine::slice() {
    const float* vectors[3] = {values_.data(), exp_avg_.data(), exp_avg_sq_.data()};
    for (std::size_t i = 0; i < 3; ++i) {
        if (host_[i].size() != own_.size) host_[i] = Buffer<float>(own_.size);
        fetch(vectors[i], span_of(host_[i]));
    }
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream()));
    return {span_of(host_[0]), span_of(host_[1]), span_of(host_[2])};
}

void GpuEngine::restore(const TrainingCheckpoint& checkpoint) {
    (void)slice();  // memory of the right size
    checkpoint.read(own_.first, span_of(host_[0]), span_of(host_[1]), span_of(host_[2]));
    give(span_of(host_[0]), values_.data());
    give(span_of(host_[1]), exp_avg_.data());
    give(span_of(host_[2]), exp_avg_sq_.data());
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream()));
}

std::vector<float> GpuEngine::gradients() {
    std::vector<float> all(static_cast<std::size_t>(gradients_.size()));
    fetch(gradients_.data(), all);
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream()));
    return all;
}

void GpuEngine::give(std::span<const float> from, float* to) {
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream()));
}

void GpuEngine::fetch(const float* from, std::span<float> to) {
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream()));
}

}  // namespace fenwick::cuda
