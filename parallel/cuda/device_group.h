// A group of a world's ranks as a world of its own, between devices (parallel/sub_communicator.h).
#pragma once

#include <vector>

#include "parallel/cuda/device_communicator.h"

namespace fenwick::cuda {

/// Rank g of the group is rank first + g of the world. Everything travels in the world, in the order of its stream.
class DeviceGroup final : public DeviceCommunicator {
public:
    /// `world` outlives this object. Throws InternalError unless this rank is one of the `size` ranks from `first` on.
    DeviceGroup(DeviceCommunicator& world, int first, int size);

    [[nodiscard]] int rank() const override { return world_.rank() - first_; }
    [[nodiscard]] int size() const override { return size_; }
    [[nodiscard]] std::string name() const override { return world_.name(); }
    [[nodiscard]] cudaStream_t stream() const override { return world_.stream(); }
    void exchange(const Place& place, std::span<const SendOp> sends, std::span<const RecvOp> recvs) override;
    void check() override { world_.check(); }

private:
    DeviceCommunicator& world_;
    int first_;
    int size_;
};

}  // namespace fenwick::cuda
