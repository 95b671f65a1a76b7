// The sum of a document's losses, in an order that no pass size, rank count or resume can change.
#pragma once

#include <cstdint>
#include <span>

namespace fenwick {

/// Adds losses in double: each kBlockTokens consecutive ones to a partial sum, the partial sums one after the other.
class NllSum {
public:
    NllSum() = default;
    /// Continues after `count` losses, a multiple of kBlockTokens, that came to `total`.
    NllSum(std::int64_t count, double total) : count_(count), closed_(total) {}

    void add(std::span<const float> losses);
    [[nodiscard]] std::int64_t count() const { return count_; }
    [[nodiscard]] double total() const { return closed_ + open_; }

private:
    std::int64_t count_ = 0;
    double closed_ = 0;  ///< of the whole blocks
    double open_ = 0;    ///< of the block that is not full
};

/// Index of the first loss that is NaN or infinite; -1: none.
[[nodiscard]] std::int64_t first_non_finite(std::span<const float> losses);

}  // namespace fenwick
