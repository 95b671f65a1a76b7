// Sums and copies of whole vectors between devices: parallel/collectives.h's reduce_scatter_sum and all_gather_slices,
// with the same slices, the same messages and the same order of sums.
#pragma once

#include <cstdint>
#include <span>

#include "core/cuda/device_buffer.h"
#include "parallel/cuda/device_communicator.h"

namespace fenwick::cuda {

class DeviceCollectives {
public:
    /// Elements of every rank's part that are received before they are summed.
    static constexpr std::int64_t kPiece = std::int64_t{1} << 22;

    /// Collective where it works for vectors of `n` elements. `comm` outlives this object, which owns the memory of the
    /// parts on their way: P * min(kPiece, slice) floats.
    DeviceCollectives(DeviceCommunicator& comm, std::int64_t n);

    /// Collective, in the communicator's stream: own_slice[i] = sum over ranks q, in order, in double, of rank q's
    /// all[slice.first + i]. Device memory; `own_slice` may be this rank's part of `all`.
    void reduce_scatter_sum(const float* all, float* own_slice);
    /// Collective, in the communicator's stream: every rank's `all` is all ranks' slices. `own_slice` may be this
    /// rank's part of `all`.
    void all_gather_slices(const float* own_slice, float* all);

    /// Device memory that both need.
    [[nodiscard]] static std::int64_t bytes(std::int64_t n, int ranks);

private:
    DeviceCommunicator& comm_;
    std::int64_t n_;
    DeviceBuffer<float> parts_;  // [P][piece]
};

}  // namespace fenwick::cuda
