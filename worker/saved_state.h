// What a document's rest needs after a whole number of blocks, as a safetensors file (DESIGN section 4, "Carrying on").
//
//   __metadata__            format "fenwick-state-1", model (hash), position (tokens), hash (of all tensors below)
//   layers.N.node.B         [floats] f32: the summary of the prefix's node for set bit B of its block count
//   layers.N.conv_rows      [halo rows, channels] f32, where the layer has a convolution
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "worker/pass_runner.h"

namespace fenwick {

/// Writes whole or not at all. Throws UnavailableError when the disk fails.
void write_state(const std::filesystem::path& file, const Model& model, std::int64_t position,
                 const std::vector<LayerCarry>& carries);

/// Fills `carries` and returns the position. Throws DataError for a file that is damaged or
/// belongs to another model.
[[nodiscard]] std::int64_t read_state(const std::filesystem::path& file, const Model& model,
                                      std::vector<LayerCarry>& carries);

}  // namespace fenwick
