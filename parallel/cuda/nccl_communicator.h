// Ranks with one GPU each, over NCCL. <nccl.h> stays behind this header.
#pragma once

#include <chrono>
#include <memory>

#include "core/cuda/stream.h"
#include "parallel/cuda/device_communicator.h"

namespace fenwick::cuda {

/// "2.28.9": the library that is loaded.
[[nodiscard]] std::string nccl_version();

struct NcclOptions {
    /// Longest time that a group of messages may run without coming to its end, and longest wait for peers at the
    /// start.
    std::chrono::milliseconds timeout{30000};
};

/// Collective to make and to destroy; uses the calling thread's current device. Started over `bootstrap` (a broadcast
/// of NCCL's unique id), which outlives it and whose status() it keeps up to date with what the device is doing.
///
/// NCCL's communicator is a blocking one: its calls only give work to the stream. (A non-blocking one, polled, made
/// each group take milliseconds.) A watchdog holds the deadline over every group, reads NCCL's own reports of faults,
/// and aborts; `check` and the next call then throw PeerLostError. If the abort itself hangs or this rank stays stuck,
/// it ends the process as the last resort, with code 75 where `bootstrap.status()` says that progress is saved,
/// else 69.
class NcclCommunicator final : public DeviceCommunicator {
public:
    /// Throws UnavailableError when NCCL refuses, PeerLostError when peers do not come.
    NcclCommunicator(Communicator& bootstrap, NcclOptions options);
    ~NcclCommunicator() override;
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;

    [[nodiscard]] int rank() const override;
    [[nodiscard]] int size() const override;
    [[nodiscard]] std::string name() const override { return "nccl"; }
    [[nodiscard]] cudaStream_t stream() const override { return stream_.get(); }
    void exchange(const Place& place, std::span<const SendOp> sends, std::span<const RecvOp> recvs) override;
    void check() override;

private:
    class World;
    Stream stream_ = Stream::urgent();
    std::unique_ptr<World> world_;
};

}  // namespace fenwick::cuda
