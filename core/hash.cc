#include "core/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <new>

#include "core/errors.h"

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

}  // namespace fenwick
