#include "core/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/errors.h"
#include "core/files.h"
#include "core/json.h"

namespace fenwick {

void SafetensorsWriter::add(std::string name, Dtype dtype, std::vector<std::int64_t> shape,
                            std::span<const std::byte> bytes) {
    if (name == "__metadata__") throw InternalError("SafetensorsWriter: the name __metadata__ is reserved");
    const auto needed = array_bytes(dtype, shape);
    if (!needed || *needed != std::ssize(bytes)) {
        throw InternalError(fmt::format("SafetensorsWriter: tensor {} of shape {} {} is given {} bytes",
                                        in_quotes(name), shape_text(shape), dtype_name(dtype), bytes.size()));
    }
    const auto [it, is_new] = entries_.try_emplace(std::move(name), Entry{dtype, std::move(shape), bytes});
    if (!is_new) throw InternalError(fmt::format("SafetensorsWriter: tensor {} is added twice", in_quotes(it->first)));
}

void SafetensorsWriter::write(const std::filesystem::path& path) const {
    using Placed = const std::pair<const std::string, Entry>*;
    std::vector<Placed> order;
    order.reserve(entries_.size());
    for (const auto& entry : entries_) order.push_back(&entry);
    std::stable_sort(order.begin(), order.end(),
                     [](Placed a, Placed b) { return element_size(a->second.dtype) > element_size(b->second.dtype); });

    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    if (!metadata_.empty()) header["__metadata__"] = metadata_;
    // Appended to the object's list of pairs: looking each new key up would take quadratic time.
    auto& fields = header.get_ref<nlohmann::ordered_json::object_t&>();
    std::int64_t offset = 0;
    for (const Placed placed : order) {
        const Entry& entry = placed->second;
        const std::int64_t end = offset + std::ssize(entry.bytes);
        nlohmann::ordered_json tensor;
        tensor["dtype"] = dtype_name(entry.dtype);
        tensor["shape"] = entry.shape;
        tensor["data_offsets"] = {offset, end};
        fields.emplace_back(placed->first, std::move(tensor));
        offset = end;
    }
    std::string text;
    try {
        text = header.dump();
    } catch (const nlohmann::json::exception& error) {
        throw InternalError(fmt::format("{}: a name or metadata is no UTF-8: {}", path.string(), error.what()));
    }
    constexpr std::size_t kAlignment = 8;
    text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');

    const std::uint64_t length = text.size();
    std::array<std::byte, sizeof(length)> length_bytes{};
    std::memcpy(length_bytes.data(), &length, sizeof(length));
    AtomicFile file(path);
    file.write(length_bytes);
    file.write(bytes_of(text));
    for (const Placed placed : order) file.write(placed->second.bytes);
    file.commit();
}

}  // namespace fenwick
