// parallel/halo.h between devices: the rows before a shard, and those carried to the next pass.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/cuda/mixer.h"
#include "parallel/cuda/device_communicator.h"
#include "parallel/cuda/device_summaries.h"
#include "parallel/halo.h"

namespace fenwick::cuda {

/// Device memory of one layer's halo exchange; rows of `row_bytes`.
struct DeviceHalo {
    const void* own_rows = nullptr;  ///< [rows_per_rank[rank]], `own_stride` bytes apart
    std::int64_t own_stride = 0;
    std::int64_t row_bytes = 0;
    const void* carried = nullptr;  ///< rank 0: [H], contiguous
    void* halo_out = nullptr;       ///< [H], contiguous, on every rank that owns rows
    void* carried_out = nullptr;    ///< rank 0: [H], contiguous, apart from `carried`
};

/// Collective, in the communicator's stream. `pool` lends what is packed for sending. `on_halo` is called when the
/// stream has the halo and no longer needs `own_rows`, before the carried rows travel: rank 0, which gets those from
/// the last ranks, does not wait for them.
void exchange_device_halo(const HaloPlan& plan, DeviceCommunicator& comm, const DeviceHalo& rows, SummaryPool& pool,
                          std::int32_t layer, const std::function<void()>& on_halo);

/// Device memory of one layer's halo gradients, `columns` a row.
struct DeviceHaloGradients {
    Operand operand = Operand::kBf16;  ///< of the rows
    const float* d_halo = nullptr;  ///< [H, columns] fp32, contiguous; not read where the plan gives the halo nothing
    std::int64_t columns = 0;
    void* d_rows = nullptr;     ///< [rows_per_rank[rank], columns] of the operand type, added to
    std::int64_t d_stride = 0;  ///< elements
};

/// Collective, in the communicator's stream, the mirror of exchange_device_halo: parallel/halo.h's
/// exchange_halo_backward. Carried rows are not part of the plan.
void exchange_device_halo_backward(const HaloPlan& plan, DeviceCommunicator& comm, const DeviceHaloGradients& rows,
                                   SummaryPool& pool, std::int32_t layer);

}  // namespace fenwick::cuda
