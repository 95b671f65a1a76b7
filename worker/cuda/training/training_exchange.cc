#include "worker/cuda/training/training_exchange.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/vectors.h"
#include "parallel/cuda/device_gradients.h"
#include "parallel/cuda/device_halo.h"
#include "parallel/exchange_backward.h"

namespace fenwick::cuda {
namespace {

/// Nothing is carried from pass to pass: no message for the next one.
HaloPlan halo_within(const DocumentRows& document, std::int64_t halo_rows) {
    std::vector<std::int64_t> rows_per_rank;
    for (const Shard& shard : document.plan->shards) rows_per_rank.push_back(shard.tokens);
    HaloPlan plan = plan_halo(rows_per_rank, static_cast<int>(halo_rows), 0);
    std::erase_if(plan.pieces, [](const HaloPiece& piece) { return piece.from_carried || piece.to_carried; });
    return plan;
}

}  // namespace

void TrainingExchange::begin() {
    mark_.record(compute_);
    mark_.make_wait(comm_.stream());
}

void TrainingExchange::end() {
    done_.record(comm_.stream());
    done_.make_wait(compute_);
}

std::shared_ptr<SummaryBuffer> TrainingExchange::lend(std::int64_t floats) {
    std::shared_ptr<SummaryBuffer> memory = pool_.allocate(floats);
    end();  // new memory is there, and lent memory free again, in the communicator's order
    return memory;
}

std::shared_ptr<SummaryBuffer> TrainingExchange::halo(std::int32_t layer, const DocumentRows& document,
                                                      const ConvolutionRows& rows) {
    const std::int64_t element = operand_ == Operand::kBf16 ? 2 : 4;
    const std::int64_t floats = (rows.halo_rows * rows.channels * element + 3) / 4;
    std::shared_ptr<SummaryBuffer> halo = pool_.allocate(std::max<std::int64_t>(floats, 1));
    if (rows.halo_rows == 0) return halo;
    const std::shared_ptr<SummaryBuffer> unused =
        pool_.allocate(floats);  // rank 0's rows for a next pass, which there is not
    DeviceHalo call;
    call.own_rows = rows.rows;
    call.own_stride = rows.stride * element;
    call.row_bytes = rows.channels * element;
    call.halo_out = halo->data();
    call.carried_out = unused->data();
    begin();
    exchange_device_halo(halo_within(document, rows.halo_rows), comm_, call, pool_, layer, [] {});
    end();
    return halo;
}

void TrainingExchange::halo_backward(std::int32_t layer, const DocumentRows& document, const ConvolutionRows& rows,
                                     const float* d_halo, void* d_rows, std::int64_t d_stride) {
    if (rows.halo_rows == 0) return;
    begin();
    exchange_device_halo_backward(halo_within(document, rows.halo_rows), comm_,
                                  {operand_, d_halo, rows.channels, d_rows, d_stride}, pool_, layer);
    end();
}

NodeSummaries TrainingExchange::entering(std::int32_t layer, const MixerShape& shape, const DocumentRows& document,
                                         NodeSummaries own, ExchangeTape& tape) {
    begin();
    DeviceExchange memory(comm_, shape, pool_, layer);
    const NodeSummaries nothing(own.floats(), 0);
    ExchangeResult result = run_exchange(document.schedule, memory, std::move(own), nothing, nullptr, &tape);
    end();
    return std::move(result.entering);
}

NodeSummaries TrainingExchange::entering_backward(std::int32_t layer, const MixerShape& shape, const ExchangeTape& tape,
                                                  std::span<const float* const> d_entering) {
    begin();
    DeviceExchange memory(comm_, shape, pool_, layer);
    DeviceSummaryGradients gradients(shape, comm_.stream());
    NodeSummaries d_cover = run_exchange_backward(tape, memory, gradients, d_entering);
    end();
    return d_cover;
}

}  // namespace fenwick::cuda
