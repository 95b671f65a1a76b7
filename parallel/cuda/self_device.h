// A world of one device.
#pragma once

#include "core/cuda/stream.h"
#include "parallel/cuda/device_communicator.h"

namespace fenwick::cuda {

/// Messages to oneself are copied; there is nobody else.
class SelfDeviceCommunicator final : public DeviceCommunicator {
public:
    [[nodiscard]] int rank() const override { return 0; }
    [[nodiscard]] int size() const override { return 1; }
    [[nodiscard]] std::string name() const override { return "self"; }
    [[nodiscard]] cudaStream_t stream() const override { return stream_.get(); }
    void exchange(const Place& place, std::span<const SendOp> sends, std::span<const RecvOp> recvs) override;
    void check() override {}

private:
    Stream stream_ = Stream::urgent();
};

}  // namespace fenwick::cuda
