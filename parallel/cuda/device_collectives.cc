#include "parallel/cuda/device_collectives.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/vectors.h"
#include "parallel/collectives.h"

namespace fenwick::cuda {
namespace {

std::int64_t piece_floats(std::int64_t n, int ranks) {
    return ranks == 1 ? 0 : std::min(DeviceCollectives::kPiece, slice_of(n, ranks, 0).size);
}

/// Part [first, first + count) of a slice, cut where the slice ends.
std::span<const std::byte> part_of(const float* slice, std::int64_t size, std::int64_t first, std::int64_t count) {
    const std::int64_t from = std::min(first, size);
    return std::as_bytes(std::span(slice + from, static_cast<std::size_t>(std::min(size - from, count))));
}

}  // namespace

std::int64_t DeviceCollectives::bytes(std::int64_t n, int ranks) {
    return ranks * piece_floats(n, ranks) * static_cast<std::int64_t>(sizeof(float));
}

DeviceCollectives::DeviceCollectives(DeviceCommunicator& comm, std::int64_t n)
    : comm_(comm), n_(n), parts_(bytes(n, comm.size()) / static_cast<std::int64_t>(sizeof(float)), comm.stream()) {}

void DeviceCollectives::reduce_scatter_sum(const float* all, float* own_slice) {
    const int ranks = comm_.size();
    const int me = comm_.rank();
    const Slice own = slice_of(n_, ranks, me);
    const std::int64_t longest = slice_of(n_, ranks, 0).size;
    const std::int64_t piece = std::max<std::int64_t>(piece_floats(n_, ranks), 1);
    if (ranks == 1) {
        if (own_slice == all || n_ == 0) return;
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(own_slice, all, static_cast<std::size_t>(n_) * sizeof(float),
                                           cudaMemcpyDeviceToDevice, comm_.stream()));
        return;
    }
    for (std::int64_t first = 0; first < longest; first += piece) {
        std::vector<SendOp> sends;
        std::vector<RecvOp> recvs;
        const std::int64_t mine = std::clamp<std::int64_t>(own.size - first, 0, piece);
        for (int rank = 0; rank < ranks; ++rank) {
            if (rank == me) continue;
            const Slice theirs = slice_of(n_, ranks, rank);
            const std::span<const std::byte> part = part_of(all + theirs.first, theirs.size, first, piece);
            if (!part.empty()) sends.push_back({rank, part});
            if (mine == 0) continue;
            recvs.push_back({rank, std::as_writable_bytes(
                                       std::span(parts_.data() + rank * piece, static_cast<std::size_t>(mine)))});
        }
        comm_.exchange({-1, "gradients"}, sends, recvs);
        sum_parts(parts_.data(), piece, ranks, me, all + own.first + first, own_slice + first, mine, comm_.stream());
    }
}

void DeviceCollectives::all_gather_slices(const float* own_slice, float* all) {
    const int ranks = comm_.size();
    const int me = comm_.rank();
    const Slice own = slice_of(n_, ranks, me);
    if (own.size > 0 && own_slice != all + own.first) {
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(all + own.first, own_slice,
                                           static_cast<std::size_t>(own.size) * sizeof(float), cudaMemcpyDeviceToDevice,
                                           comm_.stream()));
    }
    if (ranks == 1) return;
    std::vector<SendOp> sends;
    std::vector<RecvOp> recvs;
    for (int rank = 0; rank < ranks; ++rank) {
        if (rank == me) continue;
        const Slice theirs = slice_of(n_, ranks, rank);
        if (own.size > 0) sends.push_back({rank, part_of(own_slice, own.size, 0, own.size)});
        if (theirs.size == 0) continue;
        recvs.push_back(
            {rank, std::as_writable_bytes(std::span(all + theirs.first, static_cast<std::size_t>(theirs.size)))});
    }
    comm_.exchange({-1, "values"}, sends, recvs);
}

}  // namespace fenwick::cuda
