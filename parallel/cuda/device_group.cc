#include "parallel/cuda/device_group.h"

#include <fmt/format.h>

#include "core/errors.h"

namespace fenwick::cuda {

DeviceGroup::DeviceGroup(DeviceCommunicator& world, int first, int size) : world_(world), first_(first), size_(size) {
    if (first < 0 || size < 1 || first + size > world.size() || rank() < 0 || rank() >= size) {
        throw InternalError(fmt::format("group of devices: ranks [{}, {}) of a world of {}, seen from rank {}", first,
                                        first + size, world.size(), world.rank()));
    }
}

void DeviceGroup::exchange(const Place& place, std::span<const SendOp> sends, std::span<const RecvOp> recvs) {
    std::vector<SendOp> world_sends(sends.begin(), sends.end());
    std::vector<RecvOp> world_recvs(recvs.begin(), recvs.end());
    for (SendOp& send : world_sends) send.to += first_;
    for (RecvOp& recv : world_recvs) recv.from += first_;
    world_.exchange(place, world_sends, world_recvs);
}

}  // namespace fenwick::cuda
