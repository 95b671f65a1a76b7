#include "parallel/cuda/device_halo.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "core/errors.h"
#include "kernels/cuda/vectors.h"

namespace fenwick::cuda {
namespace {

class Halo {
public:
    Halo(const HaloPlan& plan, DeviceCommunicator& comm, const DeviceHalo& rows)
        : plan_(plan), comm_(comm), rows_(rows) {}

    void zero_what_nobody_gives() const {
        if (plan_.rows_per_rank[static_cast<std::size_t>(comm_.rank())] > 0) zero_unless_given(false, rows_.halo_out);
        if (comm_.rank() == 0) zero_unless_given(true, rows_.carried_out);
    }

    /// Local rows are copied, and those for others packed.
    void take_own_rows(SummaryPool& pool) {
        const int me = comm_.rank();
        for (const HaloPiece& piece : plan_.pieces) {
            const auto bytes = static_cast<std::size_t>(piece.rows * rows_.row_bytes);
            Messages& messages = piece.to_carried ? carried_ : halo_;
            if (piece.from == me && piece.to == me) {
                copy(piece, target(piece));
            } else if (piece.from == me) {
                // Whole floats: the pool's unit.
                packed_.push_back(
                    pool.allocate(static_cast<std::int64_t>((bytes + sizeof(float) - 1) / sizeof(float))));
                copy(piece, packed_.back()->data());
                messages.sends.push_back(
                    {piece.to, {reinterpret_cast<const std::byte*>(packed_.back()->data()), bytes}});
            } else if (piece.to == me) {
                messages.recvs.push_back({piece.from, {static_cast<std::byte*>(target(piece)), bytes}});
            }
        }
    }

    void exchange_halo(std::int32_t layer) const { comm_.exchange({layer, "halo"}, halo_.sends, halo_.recvs); }
    void exchange_carried(std::int32_t layer) const {
        comm_.exchange({layer, "carried rows"}, carried_.sends, carried_.recvs);
    }

private:
    void zero_unless_given(bool carried, void* rows) const {
        std::int64_t given = 0;
        for (const HaloPiece& piece : plan_.pieces) {
            if (piece.to == comm_.rank() && piece.to_carried == carried) given += piece.rows;
        }
        if (given == plan_.halo_rows) return;
        FENWICK_CUDA_CHECK(
            cudaMemsetAsync(rows, 0, static_cast<std::size_t>(plan_.halo_rows * rows_.row_bytes), comm_.stream()));
    }

    [[nodiscard]] void* target(const HaloPiece& piece) const {
        void* base = piece.to_carried ? rows_.carried_out : rows_.halo_out;
        return static_cast<unsigned char*>(base) + piece.target_row * rows_.row_bytes;
    }

    void copy(const HaloPiece& piece, void* to) const {
        const std::int64_t stride = piece.from_carried ? rows_.row_bytes : rows_.own_stride;
        const void* base = piece.from_carried ? rows_.carried : rows_.own_rows;
        const auto width = static_cast<std::size_t>(rows_.row_bytes);
        FENWICK_CUDA_CHECK(
            cudaMemcpy2DAsync(to, width, static_cast<const unsigned char*>(base) + piece.source_row * stride,
                              static_cast<std::size_t>(stride), width, static_cast<std::size_t>(piece.rows),
                              cudaMemcpyDeviceToDevice, comm_.stream()));
    }

    struct Messages {
        std::vector<SendOp> sends;
        std::vector<RecvOp> recvs;
    };

    const HaloPlan& plan_;
    DeviceCommunicator& comm_;
    const DeviceHalo& rows_;
    Messages halo_;
    Messages carried_;
    std::vector<std::shared_ptr<SummaryBuffer>> packed_;
};

}  // namespace

void exchange_device_halo(const HaloPlan& plan, DeviceCommunicator& comm, const DeviceHalo& rows, SummaryPool& pool,
                          std::int32_t layer, const std::function<void()>& on_halo) {
    if (plan.rows_per_rank.size() != static_cast<std::size_t>(comm.size())) {
        throw InternalError(
            fmt::format("halo: the plan is for {} ranks, the world has {}", plan.rows_per_rank.size(), comm.size()));
    }
    Halo halo(plan, comm, rows);
    halo.zero_what_nobody_gives();
    halo.take_own_rows(pool);
    halo.exchange_halo(layer);
    on_halo();
    halo.exchange_carried(layer);
}

void exchange_device_halo_backward(const HaloPlan& plan, DeviceCommunicator& comm, const DeviceHaloGradients& rows,
                                   SummaryPool& pool, std::int32_t layer) {
    const int me = comm.rank();
    const std::int64_t element = rows.operand == Operand::kBf16 ? 2 : 4;
    std::vector<std::shared_ptr<SummaryBuffer>> arrived;
    std::vector<SendOp> sends;
    std::vector<RecvOp> recvs;
    const auto part = [&](const HaloPiece& piece) {
        return std::span(rows.d_halo + piece.target_row * rows.columns,
                         static_cast<std::size_t>(piece.rows * rows.columns));
    };
    for (const HaloPiece& piece : plan.pieces) {
        if (piece.from_carried || piece.to_carried) {
            throw InternalError("halo, backward: carried rows are constants of the pass");
        }
        if (piece.from == piece.to) continue;
        if (piece.to == me) sends.push_back({piece.from, std::as_bytes(part(piece))});
        if (piece.from != me) continue;
        const std::shared_ptr<SummaryBuffer>& buffer = arrived.emplace_back(pool.allocate(piece.rows * rows.columns));
        recvs.push_back(
            {piece.to, std::as_writable_bytes(std::span(buffer->data(), static_cast<std::size_t>(buffer->size())))});
    }
    comm.exchange({layer, "halo, backward"}, sends, recvs);
    std::size_t next = 0;
    for (const HaloPiece& piece : plan.pieces) {
        if (piece.from != me) continue;
        const float* from = piece.to == me ? part(piece).data() : arrived[next++]->data();
        add_rows(rows.operand, from, rows.columns,
                 static_cast<unsigned char*>(rows.d_rows) + piece.source_row * rows.d_stride * element, rows.d_stride,
                 piece.rows, rows.columns, comm.stream());
    }
}

}  // namespace fenwick::cuda
