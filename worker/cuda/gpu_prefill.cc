#include "worker/cuda/gpu_prefill.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/norm.h"

namespace fenwick::cuda {
namespace {

std::int64_t whole_blocks(std::int64_t rows) {
    return (rows + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}

}  // namespace

GpuPrefill::GpuPrefill(std::shared_ptr<const Model> model, Operand operand)
    : model_(std::move(model)), weights_(*model_, operand, stream_.get()), sizes_(pass_sizes(*model_, operand)) {
    for (const GpuLayer& layer : weights_.layers()) {
        carries_.push_back({DeviceNodes(layer.shape, stream_.get()),
                            DeviceBuffer<unsigned char>(2 * layer.halo_elements() * sizes_.element, stream_.get())});
    }
    reset();
}

GpuPrefill::~GpuPrefill() {
    (void)cudaStreamSynchronize(stream_.get());  // nothing may still use what is given back now
}

void GpuPrefill::reset() {
    blocks_ = 0;
    host_carries_.clear();
    for (const GpuLayer& layer : weights_.layers()) {
        host_carries_.emplace_back().nodes = NodeSummaries(summary_floats(layer.shape), 0);
    }
    for (GpuCarry& carry : carries_) {
        if (carry.halos.size() == 0) continue;
        FENWICK_CUDA_CHECK(cudaMemsetAsync(carry.halos.data(), 0, carry.halos.bytes(), stream_.get()));
    }
}

void GpuPrefill::make_room(std::int64_t rows) {
    const std::int64_t wanted = std::max(capacity_, whole_blocks(rows));
    const std::int64_t mixer = std::max(mixer_bytes_, mixer_bytes(*model_, weights_.operand(), rows, blocks_));
    if (wanted <= capacity_ && mixer <= mixer_bytes_) return;
    slab_ = {};  // before the new one is asked for
    capacity_ = 0;
    stream_.synchronize();
    slab_ = DeviceBuffer<unsigned char>(lay_out(sizes_, wanted, mixer, nullptr).bytes, stream_.get());
    memory_ = lay_out(sizes_, wanted, mixer, slab_.data());
    capacity_ = wanted;
    mixer_bytes_ = mixer;
    host_tokens_ = PinnedBuffer<std::int32_t>(2 * wanted);
    host_nll_ = PinnedBuffer<float>(wanted);
}

void GpuPrefill::run_pass(const ShardPlan& plan, std::span<const std::int32_t> tokens,
                          std::span<const std::int32_t> targets, std::span<float> nll) {
    const auto rows = static_cast<std::int64_t>(tokens.size());
    const auto scored = static_cast<std::int64_t>(targets.size());
    if (plan.shards.size() != 1 || rows != plan.tokens || plan.first_token != blocks_ * kBlockTokens) {
        throw InternalError("prefill on the GPU: tokens do not fit the shard plan");
    }
    make_room(rows);
    const cudaStream_t stream = stream_.get();
    std::copy(tokens.begin(), tokens.end(), host_tokens_.data());
    std::copy(targets.begin(), targets.end(), host_tokens_.data() + rows);
    std::int32_t* dev_targets = memory_.tokens + rows;
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(memory_.tokens, host_tokens_.data(),
                                       static_cast<std::size_t>(rows + scored) * sizeof(std::int32_t),
                                       cudaMemcpyHostToDevice, stream));
    embed_rows(weights_.operand(), weights_.embeddings(), memory_.tokens, memory_.x, rows, weights_.hidden(), stream);
    const GpuPass pass{weights_, matmul_, memory_, stream, rows, blocks_};
    for (std::size_t i = 0; i < carries_.size(); ++i) run_layer(pass, weights_.layers()[i], carries_[i]);
    if (scored > 0) {
        rms_norm(weights_.operand(), memory_.x, weights_.final_norm(), weights_.norm_eps(), memory_.normed, rows,
                 weights_.hidden(), stream);
        cross_entropy({weights_.operand(), memory_.normed, weights_.lm_head(), dev_targets, memory_.nll, scored,
                       weights_.hidden(), weights_.vocab()},
                      matmul_, memory_.loss_workspace, memory_.matmul_workspace, stream);
        FENWICK_CUDA_CHECK(
            cudaMemcpyAsync(host_nll_.data(), memory_.nll, nll.size_bytes(), cudaMemcpyDeviceToHost, stream));
    }
    stream_.synchronize();
    std::copy_n(host_nll_.data(), scored, nll.data());
    blocks_ += rows / kBlockTokens;
}

void GpuPrefill::collect_carries() {
    host_carries_.clear();
    for (std::size_t i = 0; i < carries_.size(); ++i) {
        const std::int64_t halo = weights_.layers()[i].halo_elements();
        LayerCarry carry;
        carry.nodes = carries_[i].nodes.download(blocks_);
        carry.conv_rows = Buffer<float>(halo);
        if (halo > 0) {
            DeviceBuffer<float> rows(halo, stream_.get());
            from_operand(weights_.operand(), carries_[i].halo(false), rows.data(), halo, stream_.get());
            FENWICK_CUDA_CHECK(cudaMemcpyAsync(carry.conv_rows.data(), rows.data(), rows.bytes(),
                                               cudaMemcpyDeviceToHost, stream_.get()));
            stream_.synchronize();
        }
        host_carries_.push_back(std::move(carry));
    }
}

void GpuPrefill::carries_changed(std::int64_t position) {
    blocks_ = position / kBlockTokens;
    for (std::size_t i = 0; i < carries_.size(); ++i) {
        const LayerCarry& carry = host_carries_.at(i);
        carries_[i].nodes.upload(carry.nodes);
        if (carry.conv_rows.size() == 0) continue;
        DeviceBuffer<float> rows(carry.conv_rows.size(), stream_.get());
        FENWICK_CUDA_CHECK(
            cudaMemcpyAsync(rows.data(), carry.conv_rows.data(), rows.bytes(), cudaMemcpyHostToDevice, stream_.get()));
        to_operand(weights_.operand(), rows.data(), carries_[i].halo(false), rows.size(), stream_.get());
        stream_.synchronize();
    }
}

}  // namespace fenwick::cuda
