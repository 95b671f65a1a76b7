#include "parallel/cuda/self_device.h"

#include <fmt/format.h>

#include "core/errors.h"

namespace fenwick::cuda {

void SelfDeviceCommunicator::exchange(const Place& place, std::span<const SendOp> sends,
                                      std::span<const RecvOp> recvs) {
    bool match = sends.size() == recvs.size();
    for (std::size_t i = 0; match && i < sends.size(); ++i) {
        match = sends[i].to == 0 && recvs[i].from == 0 && sends[i].bytes.size() == recvs[i].bytes.size();
    }
    if (!match) {
        throw InternalError(fmt::format("{} of layer {}: {} sends and {} receives in a world of one rank do not match",
                                        place.part, place.layer, sends.size(), recvs.size()));
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(recvs[i].bytes.data(), sends[i].bytes.data(), sends[i].bytes.size(),
                                           cudaMemcpyDeviceToDevice, stream()));
    }
}

}  // namespace fenwick::cuda
