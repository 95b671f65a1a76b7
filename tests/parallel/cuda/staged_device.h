// Messages between devices by way of host memory and a host communicator: lets any number of ranks share one GPU, which
// NCCL refuses, so that the exchange is tested for worlds larger than the machine.
#pragma once

#include <vector>

#include "core/cuda/stream.h"
#include "parallel/cuda/device_communicator.h"

namespace fenwick::testing {

class StagedDeviceCommunicator final : public cuda::DeviceCommunicator {
public:
    explicit StagedDeviceCommunicator(Communicator& comm) : comm_(comm) {}
    [[nodiscard]] int rank() const override { return comm_.rank(); }
    [[nodiscard]] int size() const override { return comm_.size(); }
    [[nodiscard]] std::string name() const override { return "staged"; }
    [[nodiscard]] cudaStream_t stream() const override { return stream_.get(); }
    void check() override {}

    void exchange(const cuda::Place& /*place*/, std::span<const SendOp> sends, std::span<const RecvOp> recvs) override {
        std::vector<std::vector<std::byte>> out;
        std::vector<std::vector<std::byte>> in;
        std::vector<SendOp> host_sends;
        std::vector<RecvOp> host_recvs;
        for (const SendOp& send : sends) {
            std::vector<std::byte>& bytes = out.emplace_back(send.bytes.size());
            FENWICK_CUDA_CHECK(
                cudaMemcpyAsync(bytes.data(), send.bytes.data(), bytes.size(), cudaMemcpyDeviceToHost, stream()));
            host_sends.push_back({send.to, bytes});
        }
        for (const RecvOp& recv : recvs) host_recvs.push_back({recv.from, in.emplace_back(recv.bytes.size())});
        stream_.synchronize();
        comm_.exchange(host_sends, host_recvs);
        for (std::size_t i = 0; i < recvs.size(); ++i) {
            FENWICK_CUDA_CHECK(
                cudaMemcpyAsync(recvs[i].bytes.data(), in[i].data(), in[i].size(), cudaMemcpyHostToDevice, stream()));
        }
        stream_.synchronize();
    }

private:
    Communicator& comm_;
    cuda::Stream stream_ = cuda::Stream::urgent();
};

}  // namespace fenwick::testing
