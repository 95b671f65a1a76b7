// Owning streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "core/cuda/check.h"

namespace fenwick::cuda {

/// A stream of its own: it waits for no other one, the default stream included.
class Stream {
public:
    Stream() { FENWICK_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    Stream& operator=(Stream&& other) noexcept {
        std::swap(stream_, other.stream_);
        return *this;
    }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream() {
        if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    }

    [[nodiscard]] cudaStream_t get() const { return stream_; }
    /// Waits for all work given to the stream; throws UnavailableError when any of it failed.
    void synchronize() const { FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

private:
    cudaStream_t stream_ = nullptr;
};

/// A mark in a stream's work.
class Event {
public:
    /// `timed`: usable for `milliseconds_since`.
    explicit Event(bool timed = false) {
        FENWICK_CUDA_CHECK(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming));
    }
    Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Event& operator=(Event&& other) noexcept {
        std::swap(event_, other.event_);
        return *this;
    }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() {
        if (event_ != nullptr) (void)cudaEventDestroy(event_);
    }

    void record(cudaStream_t stream) const { FENWICK_CUDA_CHECK(cudaEventRecord(event_, stream)); }
    void synchronize() const { FENWICK_CUDA_CHECK(cudaEventSynchronize(event_)); }
    /// Makes later work of `stream` wait for what came before the mark.
    void make_wait(cudaStream_t stream) const { FENWICK_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }
    [[nodiscard]] float milliseconds_since(const Event& earlier) const {
        float milliseconds = 0.0F;
        FENWICK_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
        return milliseconds;
    }

private:
    cudaEvent_t event_ = nullptr;
};

}  // namespace fenwick::cuda
