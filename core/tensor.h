// Owning buffers and plain views. Sizes and offsets are 64-bit everywhere.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "core/errors.h"

namespace fenwick {

/// Rows of a row-major matrix. `stride` counts elements from one row to the next (>= cols). Does not own `data`.
template <class T>
struct MatrixView {
    T* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t stride = 0;

    MatrixView() = default;
    MatrixView(T* data_in, std::int64_t rows_in, std::int64_t cols_in, std::int64_t stride_in)
        : data(data_in), rows(rows_in), cols(cols_in), stride(stride_in) {}
    MatrixView(T* data_in, std::int64_t rows_in, std::int64_t cols_in)
        : MatrixView(data_in, rows_in, cols_in, cols_in) {}

    [[nodiscard]] T* row(std::int64_t r) const { return data + r * stride; }
    [[nodiscard]] MatrixView row_range(std::int64_t first, std::int64_t count) const {
        return {data + first * stride, count, cols, stride};
    }
    [[nodiscard]] MatrixView col_range(std::int64_t first, std::int64_t count) const {
        return {data + first, rows, count, stride};
    }
    /// A view of mutable elements is also a view of constant ones.
    operator MatrixView<const T>() const  // NOLINT(google-explicit-constructor)
        requires(!std::is_const_v<T>) {
        return {data, rows, cols, stride};
    }
};

/// to = from, of one shape.
inline void copy_rows(MatrixView<const float> from, MatrixView<float> to) {
    for (std::int64_t r = 0; r < from.rows; ++r) std::copy_n(from.row(r), from.cols, to.row(r));
}
inline void zero_rows(MatrixView<float> view) {
    for (std::int64_t r = 0; r < view.rows; ++r) std::fill_n(view.row(r), view.cols, 0.0F);
}

/// A move-only array of trivially copyable elements, 64-byte aligned, uninitialised after construction. Pages become
/// resident when first written, so a buffer sized for the worst case costs only what is used of it.
template <class T>
class Buffer {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    static constexpr std::size_t kAlignment = 64;

    Buffer() = default;
    /// Throws InternalError for a negative or overflowing size, std::bad_alloc when memory is short.
    explicit Buffer(std::int64_t size) : size_(size) {
        if (size < 0 || static_cast<std::uint64_t>(size) > std::numeric_limits<std::int64_t>::max() / sizeof(T)) {
            throw InternalError("Buffer: impossible size " + std::to_string(size));
        }
        if (size == 0) return;
        const std::size_t bytes =
            (static_cast<std::size_t>(size) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
        data_ = static_cast<T*>(std::aligned_alloc(kAlignment, bytes));
        if (data_ == nullptr) throw std::bad_alloc();
    }
    Buffer(Buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        if (this != &other) {
            std::free(data_);
            data_ = std::exchange(other.data_, nullptr);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    [[nodiscard]] T* data() { return data_; }
    [[nodiscard]] const T* data() const { return data_; }
    [[nodiscard]] std::int64_t size() const { return size_; }
    [[nodiscard]] T& operator[](std::int64_t i) { return data_[i]; }
    [[nodiscard]] const T& operator[](std::int64_t i) const { return data_[i]; }
    [[nodiscard]] T* begin() { return data_; }
    [[nodiscard]] T* end() { return data_ + size_; }
    [[nodiscard]] const T* begin() const { return data_; }
    [[nodiscard]] const T* end() const { return data_ + size_; }

    [[nodiscard]] MatrixView<T> matrix(std::int64_t rows, std::int64_t cols) { return {data_, rows, cols}; }
    [[nodiscard]] MatrixView<const T> matrix(std::int64_t rows, std::int64_t cols) const { return {data_, rows, cols}; }

private:
    T* data_ = nullptr;
    std::int64_t size_ = 0;
};

}  // namespace fenwick
