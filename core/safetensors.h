// Reader of safetensors files: mapped, and checked as a whole before any tensor is given out.
// Format: an 8-byte little-endian header length, a JSON header, then the tensors' bytes without holes
// (github.com/huggingface/safetensors, README "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/files.h"

namespace fenwick {

struct TensorInfo {
    std::string name;
    Dtype dtype = Dtype::kF32;
    std::vector<std::int64_t> shape;  ///< empty: a scalar
    const std::byte* data = nullptr;  ///< row-major, little-endian, any alignment; lives as long as the file object
    std::int64_t bytes = 0;           ///< product of the shape times the element size
};

class SafetensorsFile {
public:
    /// Throws DataError naming the file, the tensor and the reason: a length that the file does not have or above the
    /// format's 100,000,000 bytes, JSON that is damaged or nested deeper than the format has it, duplicate names,
    /// unknown dtypes, ranges that overlap, leave holes, do not fit their shapes or do not fill the file exactly.
    [[nodiscard]] static SafetensorsFile open(const std::filesystem::path& path);

    [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
    [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
    [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }  ///< by name
    [[nodiscard]] const TensorInfo* find(std::string_view name) const;                 ///< null: no such tensor
    /// Throws DataError when the file became shorter since `open`; call before reading tensor bytes.
    void check_not_cut() const { file_.check_not_cut(); }

private:
    explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
    MappedFile file_;
    std::map<std::string, std::string> metadata_;
    std::vector<TensorInfo> tensors_;
};

}  // namespace fenwick
