// Descriptions of matrices for the tensor memory accelerator (compute capability 9.0 and up), which copies boxes of
// them into tiles of shared memory (kernels/cuda/box_copy.cuh).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fenwick::cuda {

/// bf16 [rows, columns], rows `stride` elements apart, in boxes of 64 columns and 64 rows: rows of 128 bytes with the
/// 128-byte swizzle, zeros outside the matrix. `data` is a multiple of 16 bytes, `stride` of 8 elements. On GPUs
/// without the accelerator it is all zeros: their kernels do not read it. Throws InternalError for 2^31 rows or columns
/// and more, UnavailableError when the driver refuses.
[[nodiscard]] CUtensorMap make_tensor_map(const void* data, std::int64_t rows, std::int64_t columns,
                                          std::int64_t stride);

}  // namespace fenwick::cuda
