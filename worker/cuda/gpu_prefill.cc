#include "worker/cuda/gpu_prefill.h"

#include <algorithm>
#include <map>
#include <nvtx3/nvtx3.hpp>
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

GpuPrefill::GpuPrefill(std::shared_ptr<const Model> model, Operand operand, std::unique_ptr<DeviceCommunicator> comm,
                       WorldStatus& status)
    : model_(std::move(model)),
      status_(status),
      exchange_(std::make_unique<RankExchange>(std::move(comm))),
      weights_(*model_, operand, stream_.get()),
      sizes_(pass_sizes(*model_, operand)) {
    std::map<std::int64_t, std::int64_t> layers_of_size;
    for (const GpuLayer& layer : weights_.layers()) {
        ++layers_of_size[summary_floats(layer.shape)];
        GpuCarry& carry = carries_.emplace_back();
        if (!keeps_halos()) continue;
        carry.halos = DeviceBuffer<unsigned char>(2 * layer.halo_elements() * sizes_.element, stream_.get());
    }
    for (const auto& [floats, layers] : layers_of_size) {
        exchange_->pool().reserve(floats, layers * kPlannedNodes + kPassingNodes);
    }
    exchange_->connect();
    reset();
}

GpuPrefill::~GpuPrefill() {
    carries_.clear();
    exchange_.reset();                           // first: where a peer is lost it ends what would be waited for
    (void)cudaStreamSynchronize(stream_.get());  // nothing may still use what is given back now
}

void GpuPrefill::reset() {
    blocks_ = 0;
    host_carries_.clear();
    for (std::size_t i = 0; i < carries_.size(); ++i) {
        const std::int64_t floats = summary_floats(weights_.layers()[i].shape);
        host_carries_.emplace_back().nodes = NodeSummaries(floats, 0);
        carries_[i].nodes = NodeSummaries(floats, 0);
        DeviceBuffer<unsigned char>& halos = carries_[i].halos;
        if (halos.size() == 0) continue;
        FENWICK_CUDA_CHECK(cudaMemsetAsync(halos.data(), 0, halos.bytes(), stream_.get()));
    }
}

void GpuPrefill::make_room(std::int64_t rows, std::int64_t first_block) {
    const std::int64_t wanted = std::max(capacity_, whole_blocks(rows));
    const std::int64_t mixer = std::max(mixer_bytes_, mixer_bytes(*model_, weights_.operand(), rows, first_block));
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

void GpuPrefill::run_layers(const Shard& mine, std::int64_t rows) {
    const GpuPass pass{weights_, matmul_, memory_, *exchange_, stream_.get(), rows, mine.first_block};
    for (std::size_t i = 0; i < carries_.size(); ++i) {
        const nvtx3::scoped_range range("layer");
        const auto index = static_cast<std::int32_t>(i);
        run_layer(pass, weights_.layers()[i], index, carries_[i]);
    }
}

void GpuPrefill::losses(const std::int32_t* targets, std::int64_t count) {
    const cudaStream_t stream = stream_.get();
    rms_norm(weights_.operand(), memory_.x, weights_.final_norm(), weights_.norm_eps(), memory_.normed, count,
             weights_.hidden(), stream);
    cross_entropy({weights_.operand(), memory_.normed, weights_.lm_head(), targets, memory_.nll, count,
                   weights_.hidden(), weights_.vocab()},
                  matmul_, memory_.loss_workspace, memory_.matmul_workspace, stream);
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(host_nll_.data(), memory_.nll, static_cast<std::size_t>(count) * sizeof(float),
                                       cudaMemcpyDeviceToHost, stream));
}

void GpuPrefill::run_pass(const ShardPlan& plan, std::span<const std::int32_t> tokens,
                          std::span<const std::int32_t> targets, std::span<float> nll) {
    DeviceCommunicator& comm = exchange_->comm();
    const auto rows = static_cast<std::int64_t>(tokens.size());
    const auto scored = static_cast<std::int64_t>(targets.size());
    if (static_cast<int>(plan.shards.size()) != comm.size() || plan.shard(comm.rank()).tokens != rows ||
        plan.first_token != blocks_ * kBlockTokens) {
        throw InternalError("prefill on the GPU: tokens do not fit the shard plan");
    }
    const nvtx3::scoped_range range("pass");
    const Shard& mine = plan.shard(comm.rank());
    make_room(rows, mine.first_block);
    exchange_->begin_pass(plan);
    if (rows > 0) {
        std::copy(tokens.begin(), tokens.end(), host_tokens_.data());
        std::copy(targets.begin(), targets.end(), host_tokens_.data() + rows);
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(memory_.tokens, host_tokens_.data(),
                                           static_cast<std::size_t>(rows + scored) * sizeof(std::int32_t),
                                           cudaMemcpyHostToDevice, stream_.get()));
        embed_rows(weights_.operand(), weights_.embeddings(), memory_.tokens, memory_.x, rows, weights_.hidden(),
                   stream_.get());
    }
    run_layers(mine, rows);
    if (scored > 0) losses(memory_.tokens + rows, scored);
    synchronize();
    std::copy_n(host_nll_.data(), scored, nll.data());
    blocks_ += plan.tokens / kBlockTokens;
}

/// Both streams; what came over is whole afterwards.
void GpuPrefill::synchronize() {
    stream_.synchronize();
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(exchange_->comm().stream()));
    exchange_->comm().check();
}

void GpuPrefill::collect_carries() {
    synchronize();
    host_carries_.clear();
    for (std::size_t i = 0; i < carries_.size(); ++i) {
        const NodeSummaries& nodes = carries_[i].nodes;
        LayerCarry carry;
        std::vector<Summary> summaries;
        for (std::int64_t n = 0; n < nodes.size(); ++n) {
            auto summary = std::make_shared<SummaryBuffer>(nodes.floats());
            FENWICK_CUDA_CHECK(cudaMemcpyAsync(summary->data(), nodes.values(n),
                                               static_cast<std::size_t>(nodes.floats()) * sizeof(float),
                                               cudaMemcpyDeviceToHost, stream_.get()));
            summaries.push_back(std::move(summary));
        }
        carry.nodes = NodeSummaries(nodes.floats(), nodes.blocks(), std::move(summaries));
        const std::int64_t halo = keeps_halos() ? weights_.layers()[i].halo_elements() : 0;
        carry.conv_rows = Buffer<float>(halo);
        if (halo > 0) {
            DeviceBuffer<float> rows(halo, stream_.get());
            from_operand(weights_.operand(), carries_[i].halo(false), rows.data(), halo, stream_.get());
            FENWICK_CUDA_CHECK(cudaMemcpyAsync(carry.conv_rows.data(), rows.data(), rows.bytes(),
                                               cudaMemcpyDeviceToHost, stream_.get()));
        }
        stream_.synchronize();
        host_carries_.push_back(std::move(carry));
    }
}

void GpuPrefill::carries_changed(std::int64_t position) {
    synchronize();
    blocks_ = position / kBlockTokens;
    for (std::size_t i = 0; i < carries_.size(); ++i) {
        const LayerCarry& carry = host_carries_.at(i);
        std::vector<Summary> summaries;
        for (std::int64_t n = 0; n < carry.nodes.size(); ++n) {
            std::shared_ptr<SummaryBuffer> summary = exchange_->pool().allocate(carry.nodes.floats());
            FENWICK_CUDA_CHECK(cudaMemcpyAsync(summary->data(), carry.nodes.values(n),
                                               static_cast<std::size_t>(carry.nodes.floats()) * sizeof(float),
                                               cudaMemcpyHostToDevice, stream_.get()));
            summaries.push_back(std::move(summary));
        }
        carries_[i].nodes = NodeSummaries(carry.nodes.floats(), carry.nodes.blocks(), std::move(summaries));
        if (keeps_halos() && carry.conv_rows.size() > 0) {
            DeviceBuffer<float> rows(carry.conv_rows.size(), stream_.get());
            FENWICK_CUDA_CHECK(cudaMemcpyAsync(rows.data(), carry.conv_rows.data(), rows.bytes(),
                                               cudaMemcpyHostToDevice, stream_.get()));
            to_operand(weights_.operand(), rows.data(), carries_[i].halo(false), rows.size(), stream_.get());
        }
        stream_.synchronize();
    }
}

}  // namespace fenwick::cuda
