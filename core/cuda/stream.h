// Owning streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "core/cuda/check.h"

namespace fenwick::cuda {

/// A stream of its own: it waits for no other one, the default stream included.
class Stream {
public:
    Stream() : Stream(0) {}
    /// One whose work goes before that of other streams wherever the device has a choice.
    [[nodiscard]] static Stream urgent() {
        int least = 0;
        int greatest = 0;
        FENWICK_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        return Stream(greatest);
    }
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
    explicit Stream(int priority) {
        FENWICK_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
    }

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
    /// Whether all work before the mark has ended; also true before the first `record`. Throws when any of it failed.
    [[nodiscard]] bool done() const {
        const cudaError_t error = cudaEventQuery(event_);
        if (error == cudaErrorNotReady) {
            (void)cudaGetLastError();  // an answer, not a fault
            return false;
        }
        check(error, "cudaEventQuery", __FILE__, __LINE__);
        return true;
    }
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
