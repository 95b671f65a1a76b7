// Models of small_models.h written again with other tensors or another configuration.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/files.h"
#include "core/json.h"
#include "core/safetensors_writer.h"
#include "tests/worker/small_models.h"

namespace fenwick::testing {

struct ModelTensor {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
};
using ModelTensors = std::map<std::string, ModelTensor>;
using ModelEdit = std::function<void(ModelTensors& tensors, nlohmann::json& config)>;

inline void edit_model(const std::filesystem::path& from, const std::filesystem::path& to, const ModelEdit& edit) {
    Checkpoint checkpoint = Checkpoint::open(from);
    ModelTensors tensors;
    for (const std::string& name : checkpoint.names()) {
        const std::vector<std::int64_t> shape = checkpoint.info(name).shape;
        const Buffer<float> values = checkpoint.load_f32(name, shape);
        tensors[name] = {shape, {values.begin(), values.end()}};
    }
    nlohmann::json config = ConfigReader::open(from / "config.json").json();
    edit(tensors, config);
    std::filesystem::create_directories(to);
    SafetensorsWriter writer;
    for (const auto& [name, tensor] : tensors) writer.add(name, tensor.shape, tensor.values);
    writer.write(to / "model.safetensors");
    write_file_atomically(to / "config.json", config.dump());
}

}  // namespace fenwick::testing
