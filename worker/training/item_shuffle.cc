#include "worker/training/item_shuffle.h"

#include <bit>
#include <string>

#include "core/errors.h"

namespace fenwick {
namespace {

constexpr std::int64_t kMaxItems = std::int64_t{1} << 62;

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

}  // namespace

ItemShuffle::ItemShuffle(std::int64_t items, std::uint64_t seed, std::int64_t epoch) : items_(items) {
    if (items < 1 || items > kMaxItems || epoch < 0) {
        throw InternalError("ItemShuffle: " + std::to_string(items) + " items, epoch " + std::to_string(epoch));
    }
    half_bits_ = (static_cast<int>(std::bit_width(static_cast<std::uint64_t>(items - 1))) + 1) / 2;
    std::uint64_t state = mix(mix(seed + kGolden) ^ (static_cast<std::uint64_t>(epoch) * kGolden));
    for (std::uint64_t& key : keys_) key = mix(state += kGolden);
}

std::int64_t ItemShuffle::operator()(std::int64_t position) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    auto x = static_cast<std::uint64_t>(position);
    do {
        std::uint64_t left = x >> half_bits_;
        std::uint64_t right = x & mask;
        for (const std::uint64_t key : keys_) {
            const std::uint64_t next = left ^ (mix(right + key) & mask);
            left = right;
            right = next;
        }
        x = (left << half_bits_) | right;
    } while (x >= static_cast<std::uint64_t>(items_));  // ends: the walk's cycle holds `position` itself
    return static_cast<std::int64_t>(x);
}

}  // namespace fenwick
