// Random rows on the device for benchmarks: a function of row and column alone, so that a rank's rows are those that
// one rank would have there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/device_buffer.h"

namespace fenwick::bench {

/// Rows [first_row, first_row + rows) of [.., heads * dim] bf16, uniform in (-scale, scale); unit vectors of `dim` for
/// `unit` (the keys of DeltaNets).
[[nodiscard]] cuda::DeviceBuffer<__nv_bfloat16> random_operand(std::int64_t first_row, std::int64_t rows,
                                                               std::int64_t heads, std::int64_t dim, float scale,
                                                               bool unit, std::uint64_t salt, cudaStream_t stream);

/// Rows of [.., columns] fp32, uniform in [low, high).
[[nodiscard]] cuda::DeviceBuffer<float> random_floats(std::int64_t first_row, std::int64_t rows, std::int64_t columns,
                                                      float low, float high, std::uint64_t salt, cudaStream_t stream);

/// A sum over 16-bit words and their places from `first_word` on: equal for equal bits, and sums of parts add up.
/// Waits.
[[nodiscard]] std::uint64_t checksum(const void* words, std::int64_t count, std::int64_t first_word,
                                     cudaStream_t stream);

}  // namespace fenwick::bench
