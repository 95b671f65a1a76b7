#include "core/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.h"
#include "core/safetensors_header.h"

namespace fenwick {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::uint64_t kHeaderLimit = 100'000'000;  // the format's own bound

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
    SafetensorsFile result(MappedFile::open(path));
    const std::string source = path.string();
    const auto bytes = result.file_.bytes();
    const std::int64_t size = result.file_.size();
    if (size < kLengthBytes) {
        throw DataError(fmt::format("{}: {} bytes are too few for a safetensors file (8 and a header)", source, size));
    }
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    if (length > kHeaderLimit) {
        throw DataError(fmt::format("{}: header of {} bytes, the format allows {}: no safetensors file, or damaged",
                                    source, length, kHeaderLimit));
    }
    const auto header_bytes = static_cast<std::int64_t>(length);
    if (header_bytes > size - kLengthBytes) {
        throw DataError(fmt::format("{}: header of {} bytes, but only {} bytes follow its length: cut short or damaged",
                                    source, length, size - kLengthBytes));
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
    SafetensorsHeader header = parse_safetensors_header(text, size - kLengthBytes - header_bytes, source);

    result.metadata_ = std::move(header.metadata);
    result.tensors_.reserve(header.entries.size());
    const std::byte* data = bytes.data() + kLengthBytes + header_bytes;
    for (SafetensorsEntry& entry : header.entries) {
        result.tensors_.push_back(
            {std::move(entry.name), entry.dtype, std::move(entry.shape), data + entry.begin, entry.end - entry.begin});
    }
    std::sort(result.tensors_.begin(), result.tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
    return result;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
    const auto it =
        std::lower_bound(tensors_.begin(), tensors_.end(), name,
                         [](const TensorInfo& info, std::string_view wanted) { return info.name < wanted; });
    return it == tensors_.end() || it->name != name ? nullptr : &*it;
}

}  // namespace fenwick
