// Collectives built from grouped point-to-point messages. `broadcast` and `barrier` are declared in communicator.h.
//
//   broadcast:          every rank's bytes[i] becomes root's bytes[i]; ceil(log2 P) rounds, binomial tree.
//   gather_to_root:     root's all[offset(p) + i] = rank p's own[i],  offset(p) = size_0 + ... + size_(p-1).
//   scatter_from_root:  rank p's own[i] = root's all[offset(p) + i].
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

}  // namespace fenwick
