// A permutation of the numbers below n that needs no table: a Feistel network over the least even number of bits that
// hold n, walked until the result is below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, the
// cycle-walking cipher). One network covers less than 4 n numbers, so that a walk takes less than 4 steps on average.
// For shuffling, not for secrets.
#pragma once

#include <array>
#include <cstdint>

namespace fenwick {

class ItemShuffle {
public:
    /// The permutation of [0, items) that belongs to `seed` and `epoch`. `items` in [1, 2^62].
    ItemShuffle(std::int64_t items, std::uint64_t seed, std::int64_t epoch);

    /// Where the order has item number `position`; a bijection of [0, items).
    [[nodiscard]] std::int64_t operator()(std::int64_t position) const;

private:
    static constexpr int kRounds = 8;
    std::int64_t items_;
    int half_bits_ = 0;
    std::array<std::uint64_t, kRounds> keys_{};
};

}  // namespace fenwick
