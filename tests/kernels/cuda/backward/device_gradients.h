// What the GPU tests of the gradients share: bounds, and strided rows that must leave what lies between them.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "tests/kernels/cuda/device_rows.h"

namespace fenwick::test {

inline constexpr Operand kOperands[] = {Operand::kFp32, Operand::kBf16};
inline constexpr double kUnit = 0x1p-24;  // fp32's rounding

using Bytes = cuda::DeviceBuffer<unsigned char>;

/// Poisoned.
inline Bytes workspace_of(std::size_t bytes, const cuda::Stream& stream) {
    Bytes memory(static_cast<std::int64_t>(bytes), stream.get());
    FENWICK_CUDA_CHECK(cudaMemsetAsync(memory.data(), 0xFF, memory.bytes(), stream.get()));
    return memory;
}

/// Columns [first, first + columns) of rows that are `stride` apart.
template <class T>
std::vector<T> columns_of(const std::vector<T>& rows, std::int64_t stride, std::int64_t first, std::int64_t columns) {
    std::vector<T> out;
    for (std::size_t row = 0; row + static_cast<std::size_t>(stride) <= rows.size();
         row += static_cast<std::size_t>(stride)) {
        out.insert(out.end(), rows.begin() + static_cast<std::int64_t>(row) + first,
                   rows.begin() + static_cast<std::int64_t>(row) + first + columns);
    }
    return out;
}

/// What was poison (a NaN) beside the columns [first, first + columns) is still.
inline bool poison_left(const std::vector<float>& rows, std::int64_t stride, std::int64_t first, std::int64_t columns) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::int64_t column = static_cast<std::int64_t>(i) % stride - first;
        if ((column < 0 || column >= columns) && !std::isnan(rows[i])) return false;
    }
    return true;
}

/// before + sums.
inline std::vector<double> added(const std::vector<float>& before, const std::vector<double>& sums) {
    std::vector<double> out = doubles(before);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += sums[i];
    return out;
}

inline MatrixView<const double> matrix(const std::vector<double>& values, std::int64_t rows) {
    return {values.data(), rows, rows == 0 ? 0 : static_cast<std::int64_t>(values.size()) / rows};
}

}  // namespace fenwick::test
