// What a rank with a GPU needs of its world: grouped messages between the memories of devices.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string>

#include "parallel/communicator.h"

namespace fenwick::cuda {

/// Where in a pass a group of messages belongs, for errors and timelines.
struct Place {
    std::int32_t layer = 0;
    std::string part;  ///< "halo", "exchange, round 0"
};

/// One rank's end of a world of devices. Everything is done in the order of `stream()`, and nothing waits for it on the
/// host. One thread per rank uses it.
class DeviceCommunicator {
public:
    virtual ~DeviceCommunicator() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    /// "self" or "nccl".
    [[nodiscard]] virtual std::string name() const = 0;
    [[nodiscard]] virtual cudaStream_t stream() const = 0;

    /// Gives one group of sends and receives to the stream. `bytes` lie on the device and stay until the stream has
    /// passed. Sends and receives match pairwise, in order and in size, between any two ranks.
    /// Throws PeerLostError when a peer failed, UnavailableError when the library does.
    virtual void exchange(const Place& place, std::span<const SendOp> sends, std::span<const RecvOp> recvs) = 0;

    /// After a stream was waited for, before what came over is believed: throws PeerLostError when a group did not end
    /// as it should.
    virtual void check() = 0;
};

}  // namespace fenwick::cuda
