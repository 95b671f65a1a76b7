#include "worker/saved_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/errors.h"
#include "core/hash.h"
#include "core/safetensors.h"
#include "core/safetensors_writer.h"

namespace fenwick {
namespace {

constexpr const char* kFormat = "fenwick-state-1";

std::string node_name(std::size_t layer, int bit) {
    return "layers." + std::to_string(layer) + ".node." + std::to_string(bit);
}
std::string conv_name(std::size_t layer) {
    return "layers." + std::to_string(layer) + ".conv_rows";
}

// Bits flipped on disk keep a safetensors file valid, so the contents are hashed too.
class StateHash {
public:
    void add(const std::string& name, std::span<const float> values) {
        hasher_.update(name);
        hasher_.update_number(values.size());
        hasher_.update(std::as_bytes(values));
    }
    [[nodiscard]] std::string hex() const { return hasher_.hex(); }

private:
    Hasher hasher_;
};

class StateFile {
public:
    explicit StateFile(const std::filesystem::path& path) : file_(SafetensorsFile::open(path)) {}

    [[noreturn]] void fail(const std::string& why) const {
        throw DataError(file_.path().string() + ": " + why + "; delete it (and run with --overwrite) to start anew");
    }
    [[nodiscard]] std::string metadata(const std::string& key) const {
        const auto found = file_.metadata().find(key);
        if (found == file_.metadata().end()) fail("no saved state: metadata has no \"" + key + "\"");
        return found->second;
    }
    void copy(const std::string& name, std::span<float> to) {
        const TensorInfo* info = file_.find(name);
        if (info == nullptr) fail("tensor \"" + name + "\" is missing");
        if (info->dtype != Dtype::kF32 || info->bytes != static_cast<std::int64_t>(to.size_bytes())) {
            fail("tensor \"" + name + "\" has another size than this model's states");
        }
        std::memcpy(to.data(), info->data, to.size_bytes());
        hash_.add(name, to);
    }
    [[nodiscard]] std::string copied_hash() const { return hash_.hex(); }

private:
    SafetensorsFile file_;
    StateHash hash_;
};

std::int64_t parse_position(const StateFile& file) {
    const std::string text = file.metadata("position");
    std::int64_t position = -1;
    try {
        position = std::stoll(text);
    } catch (const std::exception&) {
        file.fail("position \"" + text + "\" is no number");
    }
    if (position < 0 || position % kBlockTokens != 0) file.fail("position " + text + " is not at a block");
    return position;
}

template <class Memory>
std::span<const float> all_of(const Memory& buffer) {
    return {buffer.data(), static_cast<std::size_t>(buffer.size())};
}

}  // namespace

void write_state(const std::filesystem::path& file, const Model& model, std::int64_t position,
                 const std::vector<LayerCarry>& carries) {
    SafetensorsWriter writer;
    StateHash hash;
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, std::span<const float> values) {
        hash.add(name, values);
        writer.add(name, std::move(shape), values);
    };
    for (std::size_t i = 0; i < carries.size(); ++i) {
        const LayerCarry& carry = carries[i];
        for (std::int64_t n = 0; n < carry.nodes.size(); ++n) {
            add(node_name(i, carry.nodes.node(n).bit), {carry.nodes.floats()}, all_of(*carry.nodes.summary(n)));
        }
        const TokenMixer& mixer = *model.layers()[i].mixer;
        if (mixer.halo_rows() == 0) continue;
        add(conv_name(i), {mixer.halo_rows(), mixer.conv_channels()}, all_of(carry.conv_rows));
    }
    writer.set_metadata("format", kFormat);
    writer.set_metadata("model", model.hash());
    writer.set_metadata("position", std::to_string(position));
    writer.set_metadata("hash", hash.hex());
    writer.write(file);
}

std::int64_t read_state(const std::filesystem::path& path, const Model& model, std::vector<LayerCarry>& carries) {
    StateFile file(path);
    if (file.metadata("format") != kFormat)
        file.fail("format is \"" + file.metadata("format") + "\", expected " + kFormat);
    if (file.metadata("model") != model.hash()) {
        file.fail("saved with model " + file.metadata("model") + ", this one is " + model.hash());
    }
    const std::int64_t position = parse_position(file);
    const BlockRun prefix{0, position / kBlockTokens};
    for (std::size_t i = 0; i < carries.size(); ++i) {
        LayerCarry& carry = carries[i];
        const TokenMixer& mixer = *model.layers()[i].mixer;
        const std::int64_t floats = summary_floats(mixer.shape());
        std::vector<Summary> summaries;
        for (const Node& node : canonical_cover(prefix)) {
            auto summary = std::make_shared<SummaryBuffer>(floats);
            file.copy(node_name(i, node.bit), {summary->data(), static_cast<std::size_t>(floats)});
            summaries.push_back(std::move(summary));
        }
        carry.nodes = NodeSummaries(floats, prefix, std::move(summaries));
        if (mixer.halo_rows() == 0) continue;
        carry.conv_rows = Buffer<float>(mixer.halo_rows() * mixer.conv_channels());
        file.copy(conv_name(i), {carry.conv_rows.data(), static_cast<std::size_t>(carry.conv_rows.size())});
    }
    if (file.copied_hash() != file.metadata("hash")) file.fail("contents do not match their hash: the file is damaged");
    return position;
}

}  // namespace fenwick
