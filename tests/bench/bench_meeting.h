// Times on the device, of one rank and of several that begin together.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/device_buffer.h"
#include "core/cuda/stream.h"
#include "parallel/collectives.h"
#include "parallel/cuda/device_communicator.h"
#include "tests/bench/bench_ranks.h"

namespace fenwick::bench {

/// Milliseconds of each run.
template <class Run>
std::vector<double> time_alone(int runs, cudaStream_t stream, Run run) {
    const cuda::Event begin(true);
    const cuda::Event end(true);
    std::vector<double> times;
    for (int i = -2; i < runs; ++i) {
        begin.record(stream);
        run();
        end.record(stream);
        end.synchronize();
        if (i >= 0) times.push_back(end.milliseconds_since(begin));
    }
    return times;
}

/// Work of some 0.4 ms, so that the host has given all of what is timed by the time that it begins; then a message
/// between all ranks, so that they begin together.
class Meeting {
public:
    explicit Meeting(cuda::DeviceCommunicator& comm)
        : comm_(comm), filler_(kFiller, comm.stream()), words_(2, comm.stream()) {}

    void meet() {
        FENWICK_CUDA_CHECK(cudaMemsetAsync(filler_.data(), 0, filler_.bytes(), comm_.stream()));
        for (int peer = 1; peer < comm_.size(); ++peer) {
            const SendOp send{(comm_.rank() + peer) % comm_.size(), {words_.data(), 1}};
            const RecvOp recv{(comm_.rank() + comm_.size() - peer) % comm_.size(), {words_.data() + 1, 1}};
            comm_.exchange({0, "meeting"}, {&send, 1}, {&recv, 1});
        }
    }

private:
    static constexpr std::int64_t kFiller = std::int64_t{3} << 29;
    cuda::DeviceCommunicator& comm_;
    cuda::DeviceBuffer<std::byte> filler_;
    cuda::DeviceBuffer<std::byte> words_;
};

/// Milliseconds of each run; the slowest rank counts.
template <class Run>
std::vector<double> time_together(Communicator& world, cuda::DeviceCommunicator& comm, int runs, cudaStream_t stream,
                                  Run run) {
    const cuda::Event begin(true);
    const cuda::Event end(true);
    const cuda::Event met;
    Meeting meeting(comm);
    std::vector<double> times;
    for (int i = -2; i < runs; ++i) {
        barrier(world);
        meeting.meet();
        met.record(comm.stream());
        met.make_wait(stream);
        begin.record(stream);
        run();
        end.record(stream);
        end.synchronize();
        comm.check();
        const double time = largest(world, end.milliseconds_since(begin));
        if (i >= 0) times.push_back(time);
    }
    return times;
}

}  // namespace fenwick::bench
