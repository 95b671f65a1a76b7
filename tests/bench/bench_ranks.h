// The parts of bench_ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/cuda/device_communicator.h"

namespace fenwick::bench {

/// Counts what goes over a communicator.
class CountingDevice final : public cuda::DeviceCommunicator {
public:
    struct Counts {
        std::int64_t groups = 0;  ///< with a message of the exchange in it
        std::int64_t messages = 0;
        std::int64_t bytes = 0;
    };

    explicit CountingDevice(std::unique_ptr<cuda::DeviceCommunicator> comm) : comm_(std::move(comm)) {}
    [[nodiscard]] int rank() const override { return comm_->rank(); }
    [[nodiscard]] int size() const override { return comm_->size(); }
    [[nodiscard]] std::string name() const override { return comm_->name(); }
    [[nodiscard]] cudaStream_t stream() const override { return comm_->stream(); }
    void check() override { comm_->check(); }
    void exchange(const cuda::Place& place, std::span<const SendOp> sends, std::span<const RecvOp> recvs) override {
        if (place.part.starts_with("exchange")) {
            ++counts_.groups;
            counts_.messages += static_cast<std::int64_t>(sends.size());
            for (const SendOp& send : sends) counts_.bytes += static_cast<std::int64_t>(send.bytes.size());
        }
        comm_->exchange(place, sends, recvs);
    }
    [[nodiscard]] Counts take() { return std::exchange(counts_, {}); }

private:
    std::unique_ptr<cuda::DeviceCommunicator> comm_;
    Counts counts_;
};

[[nodiscard]] double median(std::vector<double> values);

/// Collective: the largest of the ranks' values, on every rank.
[[nodiscard]] double largest(Communicator& world, double own);

/// Each mixer of the comparison, T tokens, on rank 0 alone and on all ranks. `part`: of a name, empty for all. Returns
/// false where the bytes differ, or a rank did not send what the schedule says. A mixer that memory is too small for is
/// said to be so. `json`: where figures are appended to (bench_figures.h).
[[nodiscard]] bool bench_mixers(Communicator& world, std::int64_t tokens, int runs, const std::string& part,
                                const std::filesystem::path& json);

/// Swaps of bytes and the exchange of one layer's summaries between ranks.
void bench_exchange(Communicator& world, int runs);

}  // namespace fenwick::bench
