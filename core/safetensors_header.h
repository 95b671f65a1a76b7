// The JSON header of a safetensors file: parsed and checked from its text alone. Used by core/safetensors.cc.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace fenwick {

struct SafetensorsEntry {
    std::string name;
    Dtype dtype = Dtype::kF32;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0;  ///< bytes from the start of the data part
    std::int64_t end = 0;
};

struct SafetensorsHeader {
    std::map<std::string, std::string> metadata;
    std::vector<SafetensorsEntry> entries;  ///< in the order of their bytes
};

/// Parses `text` and checks it against a data part of `data_bytes`: each range fits its shape and dtype, and together
/// they fill the data part from the first byte to the last, in whatever order the header lists them. Memory grows with
/// the number of tensors, never with numbers found in the text. Throws DataError; `source` goes in front of the reason.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t data_bytes,
                                                         const std::string& source);

}  // namespace fenwick
