// Large matrices on the device that repeat a small one, in rows and in columns: inputs and outputs too large to be
// computed on the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fenwick::test {

/// Rows and columns of a matrix whose element (r, c) is that of (r mod small_rows, c mod small_columns); contiguous.
struct Repeated {
    std::int64_t rows, columns, small_rows, small_columns;
};

/// out[rows, columns] from small[small_rows, small_columns], elements of `element_bytes` (2 or 4). Throws
/// UnavailableError.
void repeat(const Repeated& shape, const void* small, void* out, std::int64_t element_bytes, cudaStream_t stream);

/// Number of elements of data[rows, columns] whose bits differ from those of the element that they repeat in data
/// itself. Waits for the stream. Throws UnavailableError.
[[nodiscard]] std::int64_t count_unlike(const Repeated& shape, const void* data, std::int64_t element_bytes,
                                        cudaStream_t stream);

}  // namespace fenwick::test
