#include "parallel/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/errors.h"
#include "core/tensor.h"

namespace fenwick {
namespace {

void check_root(const Communicator& comm, int root) {
    if (root < 0 || root >= comm.size()) {
        throw InternalError(fmt::format("root: expected 0..{}, found {}", comm.size() - 1, root));
    }
}

/// Byte offsets of the ranks' parts [P + 1]; checks what this rank was given against them.
std::vector<std::size_t> part_offsets(const Communicator& comm, std::span<const std::int64_t> sizes,
                                      std::size_t own_bytes, std::size_t all_bytes, int root) {
    check_root(comm, root);
    if (sizes.size() != static_cast<std::size_t>(comm.size())) {
        throw InternalError(fmt::format("parts: expected {} sizes, found {}", comm.size(), sizes.size()));
    }
    std::vector<std::size_t> offsets(1, 0);
    for (const std::int64_t size : sizes) {
        if (size < 0) throw InternalError(fmt::format("parts: negative size {}", size));
        offsets.push_back(offsets.back() + static_cast<std::size_t>(size));
    }
    const auto expected = static_cast<std::size_t>(sizes[static_cast<std::size_t>(comm.rank())]);
    if (own_bytes != expected) {
        throw InternalError(
            fmt::format("rank {}'s part: expected {} bytes, found {}", comm.rank(), expected, own_bytes));
    }
    if (comm.rank() == root && all_bytes != offsets.back()) {
        throw InternalError(fmt::format("root's parts: expected {} bytes, found {}", offsets.back(), all_bytes));
    }
    return offsets;
}

/// This rank's slice of n elements, when `found` is its size.
Slice checked_slice(const Communicator& comm, std::int64_t n, std::int64_t found) {
    const Slice own = slice_of(n, comm.size(), comm.rank());
    if (own.size == found) return own;
    throw InternalError(fmt::format("rank {}'s slice of {} elements over {} ranks: expected {}, found {}", comm.rank(),
                                    n, comm.size(), own.size, found));
}

template <class T>
std::span<T> elements(std::span<T> all, const Slice& slice) {
    return all.subspan(static_cast<std::size_t>(slice.first), static_cast<std::size_t>(slice.size));
}

}  // namespace

void broadcast(Communicator& comm, std::span<std::byte> bytes, int root) {
    check_root(comm, root);
    const int size = comm.size();
    const int place = (comm.rank() - root + size) % size;  // root stands at 0
    for (int reach = 1; reach < size; reach *= 2) {
        // Places [0, reach) have the bytes; each hands them to the place `reach` after it.
        if (place < reach && place + reach < size) {
            const SendOp send{(place + reach + root) % size, bytes};
            comm.exchange({&send, 1}, {});
        } else if (place >= reach && place < 2 * reach) {
            const RecvOp recv{(place - reach + root) % size, bytes};
            comm.exchange({}, {&recv, 1});
        }
    }
}

void barrier(Communicator& comm) {
    const int size = comm.size();
    // Dissemination: after the round with step s a rank knows that the 2 s - 1 ranks before it have come.
    for (int step = 1; step < size; step *= 2) {
        const std::array<std::byte, 1> mine{};
        std::array<std::byte, 1> theirs{};
        const SendOp send{(comm.rank() + step) % size, mine};
        const RecvOp recv{(comm.rank() - step + size) % size, theirs};
        comm.exchange({&send, 1}, {&recv, 1});
    }
}

void gather_to_root(Communicator& comm, std::span<const std::byte> own, std::span<const std::int64_t> sizes,
                    std::span<std::byte> all, int root) {
    const std::vector<std::size_t> offsets = part_offsets(comm, sizes, own.size(), all.size(), root);
    std::vector<SendOp> sends;
    std::vector<RecvOp> recvs;
    if (comm.rank() != root) {
        if (!own.empty()) sends.push_back({root, own});
    } else {
        for (int rank = 0; rank < comm.size(); ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            const std::span<std::byte> part = all.subspan(offsets[r], offsets[r + 1] - offsets[r]);
            if (part.empty()) continue;
            if (rank == root) {
                std::memmove(part.data(), own.data(), own.size());
            } else {
                recvs.push_back({rank, part});
            }
        }
    }
    comm.exchange(sends, recvs);
}

void scatter_from_root(Communicator& comm, std::span<const std::byte> all, std::span<const std::int64_t> sizes,
                       std::span<std::byte> own, int root) {
    const std::vector<std::size_t> offsets = part_offsets(comm, sizes, own.size(), all.size(), root);
    std::vector<SendOp> sends;
    std::vector<RecvOp> recvs;
    if (comm.rank() != root) {
        if (!own.empty()) recvs.push_back({root, own});
    } else {
        for (int rank = 0; rank < comm.size(); ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            const std::span<const std::byte> part = all.subspan(offsets[r], offsets[r + 1] - offsets[r]);
            if (part.empty()) continue;
            if (rank == root) {
                std::memmove(own.data(), part.data(), part.size());
            } else {
                sends.push_back({rank, part});
            }
        }
    }
    comm.exchange(sends, recvs);
}

Slice slice_of(std::int64_t n, int ranks, int rank) {
    if (n < 0 || rank < 0 || rank >= ranks) {
        throw InternalError(fmt::format("slice {} of {} of {} elements", rank, ranks, n));
    }
    const std::int64_t size = n / ranks + (n % ranks != 0 ? 1 : 0);
    const std::int64_t first = std::min(n, rank * size);
    return {first, std::min(n - first, size)};
}

void reduce_scatter_sum(Communicator& comm, std::span<const float> all, std::span<float> own_slice,
                        std::int64_t buffer_bytes) {
    const int ranks = comm.size();
    const std::int64_t n = std::ssize(all);
    const Slice own = checked_slice(comm, n, std::ssize(own_slice));
    const auto element_bytes = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t piece = std::max<std::int64_t>(1, buffer_bytes / element_bytes / ranks);
    const std::int64_t longest = slice_of(n, ranks, 0).size;
    // Part of rank p's slice that travels in the round that begins at `offset` of every slice.
    const auto part_of = [&](int p, std::int64_t offset) {
        const Slice slice = slice_of(n, ranks, p);
        const std::int64_t skipped = std::min(slice.size, offset);
        return Slice{slice.first + skipped, std::min(slice.size - skipped, piece)};
    };
    Buffer<float> received(ranks * std::min(piece, own.size));
    Buffer<double> sums(std::min(piece, own.size));
    for (std::int64_t offset = 0; offset < longest; offset += piece) {
        const Slice mine = part_of(comm.rank(), offset);
        std::vector<SendOp> sends;
        std::vector<RecvOp> recvs;
        for (int p = 0; p < ranks; ++p) {
            const Slice theirs = part_of(p, offset);
            if (p == comm.rank()) continue;
            if (theirs.size > 0) sends.push_back({p, std::as_bytes(elements(all, theirs))});
            if (mine.size > 0) {
                recvs.push_back({p, std::as_writable_bytes(std::span(received.data() + p * mine.size,
                                                                     static_cast<std::size_t>(mine.size)))});
            }
        }
        comm.exchange(sends, recvs);
        std::fill_n(sums.data(), mine.size, 0.0);
        for (int p = 0; p < ranks; ++p) {
            const float* values = p == comm.rank() ? all.data() + mine.first : received.data() + p * mine.size;
            for (std::int64_t i = 0; i < mine.size; ++i) sums[i] += static_cast<double>(values[i]);
        }
        float* out = own_slice.data() + (mine.first - own.first);
        for (std::int64_t i = 0; i < mine.size; ++i) out[i] = static_cast<float>(sums[i]);
    }
}

void all_gather_slices(Communicator& comm, std::span<const float> own_slice, std::span<float> all) {
    const std::int64_t n = std::ssize(all);
    const Slice own = checked_slice(comm, n, std::ssize(own_slice));
    std::vector<SendOp> sends;
    std::vector<RecvOp> recvs;
    for (int p = 0; p < comm.size(); ++p) {
        const Slice theirs = slice_of(n, comm.size(), p);
        if (p == comm.rank()) continue;
        if (own.size > 0) sends.push_back({p, std::as_bytes(own_slice)});
        if (theirs.size > 0) recvs.push_back({p, std::as_writable_bytes(elements(all, theirs))});
    }
    comm.exchange(sends, recvs);
    if (own.size > 0) std::memmove(all.data() + own.first, own_slice.data(), own_slice.size_bytes());
}

void all_sum(Communicator& comm, std::span<double> values) {
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(comm.size()),
                                          static_cast<std::int64_t>(values.size_bytes()));
    std::vector<double> all(comm.rank() == 0 ? values.size() * sizes.size() : 0);
    gather_to_root(comm, std::as_bytes(values), sizes, std::as_writable_bytes(std::span(all)));
    if (comm.rank() == 0) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = 0.0;
            for (std::size_t p = 0; p < sizes.size(); ++p) values[i] += all[p * values.size() + i];
        }
    }
    if (!values.empty()) broadcast(comm, std::as_writable_bytes(values));
}

}  // namespace fenwick
