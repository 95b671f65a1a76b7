#include "parallel/collectives.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

#include "core/errors.h"

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

}  // namespace fenwick
