// A checkpoint folder: one safetensors file, or several that an index names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors.h"
#include "core/tensor.h"

namespace fenwick {

class Checkpoint {
public:
    /// Reads `model.safetensors.index.json` and the shards that it names; without one, `model.safetensors`. (Where both
    /// exist the index decides.) Throws DataError naming shard and tensor when something is absent or damaged, or when
    /// the index names a shard for a tensor that the shard does not have.
    [[nodiscard]] static Checkpoint open(const std::filesystem::path& folder);

    [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
    [[nodiscard]] bool has(std::string_view name) const { return entries_.find(name) != entries_.end(); }
    /// Throws DataError when there is no such tensor.
    [[nodiscard]] const TensorInfo& info(std::string_view name) const;
    [[nodiscard]] std::vector<std::string> names() const;  ///< sorted

    /// The tensor in fp32. Throws DataError naming file and tensor when it is absent, has another shape than `shape`,
    /// or a dtype that convert_to_f32 refuses.
    [[nodiscard]] Buffer<float> load_f32(std::string_view name, std::span<const std::int64_t> shape);
    /// Says that the tensor is known and not needed: `unused` leaves it out. A name that is absent is fine.
    void ignore(std::string_view name);
    /// Names never loaded nor ignored, and tensors that lie in a shard without being in the index; for a warning.
    [[nodiscard]] std::vector<std::string> unused() const;

    /// Of names, dtypes, shapes and bytes in the order of names: the same for any sharding. Reads every byte.
    [[nodiscard]] std::string hash() const;
    /// Elements of all tensors.
    [[nodiscard]] std::int64_t parameters() const;

private:
    struct Entry {
        std::size_t file = 0;              // in files_
        const TensorInfo* info = nullptr;  // in that file
        bool used = false;
    };
    void open_sharded(const std::filesystem::path& index);
    void open_single(const std::filesystem::path& path);
    const Entry& entry(std::string_view name) const;

    std::filesystem::path folder_;
    std::vector<SafetensorsFile> files_;
    std::map<std::string, Entry, std::less<>> entries_;
    std::vector<std::string> extra_;
};

}  // namespace fenwick
