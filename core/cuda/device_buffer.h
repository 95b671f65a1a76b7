// Memory of the GPU and pinned memory of the host: owning, move-only, the stream explicit wherever memory is allocated.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/cuda/check.h"

namespace fenwick::cuda {

/// `bytes` of device memory in the order of `stream`. Throws UnavailableError (with advice) when there is too little,
/// InternalError for a negative size.
[[nodiscard]] void* device_allocate(std::int64_t bytes, cudaStream_t stream);
/// Gives it back in the order of `stream`; logs a failure, never throws.
void device_free(void* data, cudaStream_t stream) noexcept;

/// Pinned host memory, which copies to and from the device without waiting need.
[[nodiscard]] void* pinned_allocate(std::int64_t bytes);
void pinned_free(void* data) noexcept;

/// `size()` elements on the device, uninitialised. The stream must outlive the buffer.
template <class T>
class DeviceBuffer {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    DeviceBuffer() = default;
    DeviceBuffer(std::int64_t size, cudaStream_t stream)
        : data_(static_cast<T*>(device_allocate(size * static_cast<std::int64_t>(sizeof(T)), stream))),
          size_(size),
          stream_(stream) {}
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), stream_(other.stream_) {}
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        if (this != &other) {
            device_free(data_, stream_);
            data_ = std::exchange(other.data_, nullptr);
            size_ = std::exchange(other.size_, 0);
            stream_ = other.stream_;
        }
        return *this;
    }
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;
    ~DeviceBuffer() { device_free(data_, stream_); }

    [[nodiscard]] T* data() { return data_; }
    [[nodiscard]] const T* data() const { return data_; }
    [[nodiscard]] std::int64_t size() const { return size_; }
    [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

private:
    T* data_ = nullptr;
    std::int64_t size_ = 0;
    cudaStream_t stream_ = nullptr;
};

/// `size()` elements of pinned host memory, uninitialised.
template <class T>
class PinnedBuffer {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    PinnedBuffer() = default;
    explicit PinnedBuffer(std::int64_t size)
        : data_(static_cast<T*>(pinned_allocate(size * static_cast<std::int64_t>(sizeof(T))))), size_(size) {}
    PinnedBuffer(PinnedBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
        if (this != &other) {
            pinned_free(data_);
            data_ = std::exchange(other.data_, nullptr);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    PinnedBuffer(const PinnedBuffer&) = delete;
    PinnedBuffer& operator=(const PinnedBuffer&) = delete;
    ~PinnedBuffer() { pinned_free(data_); }

    [[nodiscard]] T* data() { return data_; }
    [[nodiscard]] const T* data() const { return data_; }
    [[nodiscard]] std::int64_t size() const { return size_; }

private:
    T* data_ = nullptr;
    std::int64_t size_ = 0;
};

}  // namespace fenwick::cuda
