// Lists of nodes on a device, and their exchange: parallel/exchange.h with device memory, kernels and a stream.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/cuda/device_buffer.h"
#include "kernels/summary.h"
#include "parallel/cuda/device_communicator.h"
#include "parallel/exchange.h"

namespace fenwick::cuda {

/// Device memory that is handed out again and again. What is given back may be handed out at once, so everything that
/// was done with it must precede, in the stream's order, what is done with it next: before a stream works on memory
/// newly taken, it waits for all other streams that worked on what was given back.
class SummaryPool {
public:
    explicit SummaryPool(cudaStream_t stream) : state_(std::make_shared<State>(State{stream, {}, {}})) {}

    /// Sets `count` pieces of `floats` aside. Throws UnavailableError when the device's memory is full.
    void reserve(std::int64_t floats, std::int64_t count);
    /// A piece of a reserved size, or of a power of two.
    [[nodiscard]] std::shared_ptr<SummaryBuffer> allocate(std::int64_t floats);

private:
    struct State {
        cudaStream_t stream;
        std::vector<DeviceBuffer<float>> memory;
        std::map<std::int64_t, std::vector<float*>> free;  ///< by size
    };
    std::shared_ptr<State> state_;  ///< pieces that are still out keep it
};

/// Summaries of one shape, from a pool, worked on in a stream.
class DeviceSummaries final : public SummaryMemory {
public:
    DeviceSummaries(const MixerShape& shape, SummaryPool& pool, cudaStream_t stream)
        : shape_(shape), pool_(pool), stream_(stream) {}
    [[nodiscard]] std::shared_ptr<SummaryBuffer> allocate(std::int64_t floats) override {
        return pool_.allocate(floats);
    }
    void copy(const float* from, std::int64_t floats, float* to) override;
    void combine_siblings(const float* children, std::int64_t pairs, std::int64_t floats, float* out) override;
    void combine(const float* left, const float* right, float* out) override;

private:
    MixerShape shape_;
    SummaryPool& pool_;
    cudaStream_t stream_;
};

/// The exchange of one layer between devices; everything goes to the communicator's stream.
class DeviceExchange final : public ExchangeMemory {
public:
    DeviceExchange(DeviceCommunicator& comm, const MixerShape& shape, SummaryPool& pool, std::int32_t layer)
        : comm_(comm), summaries_(shape, pool, comm.stream()), layer_(layer) {}
    [[nodiscard]] SummaryMemory& summaries() override { return summaries_; }
    [[nodiscard]] int rank() const override { return comm_.rank(); }
    [[nodiscard]] int size() const override { return comm_.size(); }
    void exchange(int round, std::span<const SendOp> sends, std::span<const RecvOp> recvs) override;

private:
    DeviceCommunicator& comm_;
    DeviceSummaries summaries_;
    std::int32_t layer_;
};

}  // namespace fenwick::cuda
