// Writer of safetensors files (format: see core/safetensors.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace fenwick {

/// Collects views of tensors, then writes them in one go. Equal tensors and metadata make equal files in whatever order
/// they were added: larger element sizes come first (so data stays aligned), then the order of names.
class SafetensorsWriter {
public:
    /// `bytes` is row-major and little-endian and must stay valid until `write`. Throws InternalError for a name used
    /// twice or reserved, and for a size that is not that of the shape.
    void add(std::string name, Dtype dtype, std::vector<std::int64_t> shape, std::span<const std::byte> bytes);
    void add(std::string name, std::vector<std::int64_t> shape, std::span<const float> values) {
        add(std::move(name), Dtype::kF32, std::move(shape), std::as_bytes(values));
    }
    /// An entry of the `__metadata__` map.
    void set_metadata(std::string key, std::string value) { metadata_[std::move(key)] = std::move(value); }

    /// Writes `path` whole or not at all (AtomicFile); only the header is held in memory. The data starts at a multiple
    /// of 8 bytes. Throws UnavailableError when the disk fails.
    void write(const std::filesystem::path& path) const;

private:
    struct Entry {
        Dtype dtype;
        std::vector<std::int64_t> shape;
        std::span<const std::byte> bytes;
    };
    std::map<std::string, std::string> metadata_;
    std::map<std::string, Entry> entries_;
};

}  // namespace fenwick
