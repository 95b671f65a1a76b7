#include "worker/cuda/pass_memory.h"

#include <algorithm>

#include "core/fenwick.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/matmul.h"
#include "worker/cuda/rank_exchange.h"

namespace fenwick::cuda {
namespace {

constexpr std::int64_t kAlignment = 1024;
constexpr std::int64_t kManyBlocks = (std::int64_t{1} << 20) - 1;  // every bit set: the most states that can enter

class Places {
public:
    explicit Places(unsigned char* base) : base_(base) {}
    template <class T = void>
    T* take(std::int64_t bytes) {
        unsigned char* at = base_ == nullptr ? nullptr : base_ + used_;
        used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
        return reinterpret_cast<T*>(at);
    }
    [[nodiscard]] std::int64_t used() const { return used_; }

private:
    unsigned char* base_;
    std::int64_t used_ = 0;
};

void raise(std::int64_t& size, std::int64_t other) {
    size = std::max(size, other);
}

}  // namespace

PassSizes pass_sizes(const Model& model, Operand operand) {
    PassSizes sizes;
    sizes.hidden = model.hidden_size();
    sizes.vocab = model.vocab_size();
    sizes.layers = static_cast<std::int64_t>(model.layers().size());
    sizes.element = operand == Operand::kBf16 ? 2 : 4;
    for (const LayerParts& layer : model.layers()) {
        const TokenMixer& mixer = *layer.mixer;
        std::int64_t gates_first = 0;
        std::visit([&](const auto& steps) { gates_first = steps.gates_first; }, mixer.steps());
        raise(sizes.projected, gates_first);
        raise(sizes.gates, gate_stride(mixer.in_proj().outputs - gates_first));
        raise(sizes.heads, mixer.shape().heads);
        raise(sizes.convolved, mixer.conv_channels());
        raise(sizes.values, mixer.shape().heads * mixer.shape().value_dim);
        raise(sizes.summary, summary_floats(mixer.shape()));
        raise(sizes.halo, mixer.halo_rows() * mixer.conv_channels());
        if (layer.mlp != nullptr) raise(sizes.intermediate, layer.mlp->intermediate());
    }
    return sizes;
}

PassMemory lay_out(const PassSizes& sizes, std::int64_t rows, std::int64_t mixer_bytes, unsigned char* base) {
    Places places(base);
    PassMemory memory;
    memory.tokens = places.take<std::int32_t>(2 * rows * 4);
    memory.nll = places.take<float>(rows * 4);
    memory.most_likely = places.take<std::uint8_t>(rows);
    memory.x = places.take<float>(rows * sizes.hidden * 4);
    memory.normed = places.take(rows * sizes.hidden * sizes.element);
    memory.projected = places.take(rows * sizes.projected * sizes.element);
    memory.gates = places.take<float>(rows * sizes.gates * 4);
    memory.log_decay = places.take<float>(rows * sizes.heads * 4);
    memory.convolved = places.take(rows * sizes.convolved * sizes.element);
    memory.v = places.take(rows * sizes.values * sizes.element);
    memory.o = places.take(rows * sizes.values * sizes.element);
    memory.summaries = places.take<float>(rows / kBlockTokens * sizes.summary * 4);
    memory.node_scratch = places.take<float>(cover_scratch_floats(rows / kBlockTokens, sizes.summary) * 4);
    memory.halo = places.take(sizes.halo * sizes.element);
    memory.wide = places.take(std::min(rows, kMlpRows) * 2 * sizes.intermediate * sizes.element);
    memory.matmul_workspace = places.take(static_cast<std::int64_t>(Matmul::kWorkspaceBytes));
    memory.mixer_workspace = places.take(mixer_bytes);
    memory.loss_workspace = places.take(static_cast<std::int64_t>(cross_entropy_workspace_bytes(sizes.vocab)));
    memory.bytes = places.used();
    return memory;
}

std::int64_t mixer_bytes(const Model& model, Operand operand, std::int64_t rows, std::int64_t first_block) {
    std::size_t bytes = 0;
    for (const LayerParts& layer : model.layers()) {
        const MixerShape& shape = layer.mixer->shape();
        bytes = std::max({bytes, mixer_workspace_bytes(shape, operand, rows, first_block),
                          mixer_workspace_bytes(shape, operand, rows, kManyBlocks)});
    }
    return static_cast<std::int64_t>(bytes);
}

std::int64_t run_bytes(const Model& model, Operand operand, std::int64_t rows) {
    const PassSizes sizes = pass_sizes(model, operand);
    std::int64_t carried = 0;
    for (const LayerParts& layer : model.layers()) {
        carried += (kPlannedNodes + kPassingNodes) * summary_floats(layer.mixer->shape()) * 4;
        carried += 2 * layer.mixer->halo_rows() * layer.mixer->conv_channels() * sizes.element;
    }
    return carried + lay_out(sizes, rows, mixer_bytes(model, operand, rows, 0), nullptr).bytes;
}

}  // namespace fenwick::cuda
