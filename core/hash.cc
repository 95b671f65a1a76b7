#include "core/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <new>

#include "core/errors.h"
#include "core/files.h"
#include "core/map_pages.h"

namespace fenwick {

void Hasher::Free::operator()(XXH3_state_s* state) const {
    XXH3_freeState(state);
}

Hasher::Hasher() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    if (XXH3_128bits_reset(state_.get()) != XXH_OK) throw InternalError("XXH3_128bits_reset failed");
}

void Hasher::update(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    if (XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()) != XXH_OK) {
        throw InternalError("XXH3_128bits_update failed");
    }
}

void Hasher::update(std::string_view text) {
    update(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

void Hasher::update_number(std::uint64_t value) {
    std::array<std::byte, 8> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
    update(bytes);
}

std::string Hasher::hex() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
    std::string text;
    for (const unsigned char byte : canonical.digest) text += fmt::format("{:02x}", byte);
    return text;
}

std::string hash_of(const MappedFile& file) {
    constexpr std::int64_t kStretch = std::int64_t{16} << 20;
    Hasher hasher;
    for (std::int64_t first = 0; first < file.size(); first += kStretch) {
        file.check_not_cut();
        const std::int64_t size = std::min(kStretch, file.size() - first);
        hasher.update(file.bytes().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size)));
        forget_pages(file, first, size);
    }
    return hasher.hex();
}

}  // namespace fenwick
