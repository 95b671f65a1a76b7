// What a layer exchanges with the group's other ranks for a document over ranks, there and back, between devices:
// worker/training's halo and tree exchanges in the communicator's stream. Whatever is needed is waited for by the
// streams, in both directions, so that lent memory may go round; the host waits for nothing.
#pragma once

#include <memory>
#include <vector>

#include "core/cuda/stream.h"
#include "kernels/cuda/mixer.h"
#include "parallel/cuda/device_communicator.h"
#include "parallel/cuda/device_summaries.h"
#include "parallel/exchange.h"
#include "worker/training/batch.h"

namespace fenwick::cuda {

/// Rows of a convolution on the device.
struct ConvolutionRows {
    const void* rows = nullptr;  ///< this rank's, of the operand type
    std::int64_t stride = 0;     ///< elements
    std::int64_t channels = 0;
    std::int64_t halo_rows = 0;
};

class TrainingExchange {
public:
    /// `comm`: the group's. `compute`: the stream of everything else.
    TrainingExchange(DeviceCommunicator& comm, Operand operand, cudaStream_t compute)
        : comm_(comm), operand_(operand), compute_(compute), pool_(comm.stream()) {}

    /// Device memory for use in the compute stream's order.
    [[nodiscard]] std::shared_ptr<SummaryBuffer> lend(std::int64_t floats);

    /// Collective. The [halo_rows, channels] rows before this rank's of `document`, of the operand type.
    [[nodiscard]] std::shared_ptr<SummaryBuffer> halo(std::int32_t layer, const DocumentRows& document,
                                                      const ConvolutionRows& rows);
    /// Collective. Gives d_halo [halo_rows, channels] fp32 back to the owners of the rows, who add it to d_rows, of the
    /// operand type, in the order of the halo's pieces.
    void halo_backward(std::int32_t layer, const DocumentRows& document, const ConvolutionRows& rows,
                       const float* d_halo, void* d_rows, std::int64_t d_stride);

    /// Collective. `own`: this rank's cover, borrowed until the tape is done with. Returns what enters the shard.
    [[nodiscard]] NodeSummaries entering(std::int32_t layer, const MixerShape& shape, const DocumentRows& document,
                                         NodeSummaries own, ExchangeTape& tape);
    /// Collective. The gradients of the tape's own cover.
    [[nodiscard]] NodeSummaries entering_backward(std::int32_t layer, const MixerShape& shape, const ExchangeTape& tape,
                                                  std::span<const float* const> d_entering);

    [[nodiscard]] DeviceCommunicator& comm() { return comm_; }
    [[nodiscard]] SummaryPool& pool() { return pool_; }

private:
    void begin();  // the communicator's stream waits for the other one
    void end();    // and the other way round

    DeviceCommunicator& comm_;
    Operand operand_;
    cudaStream_t compute_;
    SummaryPool pool_;
    Event mark_;
    Event done_;
};

}  // namespace fenwick::cuda
