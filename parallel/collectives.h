// Collectives built from grouped point-to-point messages. `broadcast` and `barrier` are declared in communicator.h.
//
//   broadcast:          every rank's bytes[i] becomes root's bytes[i]; ceil(log2 P) rounds, binomial tree.
//   gather_to_root:     root's all[offset(p) + i] = rank p's own[i],  offset(p) = size_0 + ... + size_(p-1).
//   scatter_from_root:  rank p's own[i] = root's all[offset(p) + i].
//
// A vector of n elements over P ranks has slices of s = ceil(n / P), the last ones short or empty: slice(p) is
// [min(n, p s), min(n, (p + 1) s)).
//
//   reduce_scatter_sum: rank p's own[i] = sum over q of rank q's all[slice(p).first + i]
//   all_gather_slices:  every rank's all[slice(p).first + i] = rank p's own[i]
//   all_sum:            every rank's values[i] = sum over q of rank q's values[i]
//
// Messages go straight from whose they are to whom they are for: a rank sends and gets n (P - 1) / P elements. Sums are
// taken in the order q = 0, 1, ..., P - 1, in double: the same bits each time, and the same on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/communicator.h"

namespace fenwick {

/// `sizes` [P]: bytes of each rank, the same on every rank; `own` has sizes[rank]. `all` matters on root only and has
/// the sum of the sizes there. Parts of size 0 send nothing. Throws InternalError when a size disagrees.
void gather_to_root(Communicator& comm, std::span<const std::byte> own, std::span<const std::int64_t> sizes,
                    std::span<std::byte> all, int root = 0);

/// The reverse of `gather_to_root`.
void scatter_from_root(Communicator& comm, std::span<const std::byte> all, std::span<const std::int64_t> sizes,
                       std::span<std::byte> own, int root = 0);

struct Slice {
    std::int64_t first = 0;
    std::int64_t size = 0;
    friend bool operator==(const Slice&, const Slice&) = default;
};

/// Rank `rank`'s slice of n elements. Throws InternalError unless 0 <= n and 0 <= rank < ranks.
[[nodiscard]] Slice slice_of(std::int64_t n, int ranks, int rank);

/// Bytes that reduce_scatter_sum receives at a time.
inline constexpr std::int64_t kReduceBytes = std::int64_t{64} << 20;

/// `all` [n], n the same on every rank; `own_slice` [slice_of(n, P, rank).size], which may be this rank's part of
/// `all`. The double sum is rounded to fp32 once. `buffer_bytes`: at most so much is received before it is summed (but
/// one element from each rank), the same on every rank. Throws InternalError when a size disagrees.
void reduce_scatter_sum(Communicator& comm, std::span<const float> all, std::span<float> own_slice,
                        std::int64_t buffer_bytes = kReduceBytes);

/// `own_slice` [slice_of(n, P, rank).size], which may be this rank's part of `all` [n]; n the same on every rank.
/// Throws InternalError when a size disagrees.
void all_gather_slices(Communicator& comm, std::span<const float> own_slice, std::span<float> all);

/// A few values (losses, counts, norms): rank 0 gets all ranks' and sums them. As many on every rank.
void all_sum(Communicator& comm, std::span<double> values);

}  // namespace fenwick
