// A group of a world's ranks as a world of its own.
//
//   rank g of the group = rank ranks[g] of the world
#pragma once

#include <vector>

#include "parallel/communicator.h"

namespace fenwick {

/// Messages travel in the world: between two ranks those of all groups and of the world itself keep one order, so ranks
/// that share several groups must use them in the same order. A failure is the world's: `abort` ends the world,
/// PeerLostError names ranks of the world, and `status` is the world's, for there is one account for each rank.
class SubCommunicator final : public Communicator {
public:
    /// `world` outlives this object. `ranks`: the members' ranks in the world, the same on every member, this rank one
    /// of them. Not collective: nothing is sent. Throws InternalError when a rank is not of the world or comes twice,
    /// or when this rank is not among them.
    SubCommunicator(Communicator& world, std::vector<int> ranks);

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return static_cast<int>(ranks_.size()); }
    [[nodiscard]] std::string name() const override { return world_.name(); }
    void exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) override;
    void abort(const std::string& reason, ExitCode code) noexcept override { world_.abort(reason, code); }
    [[nodiscard]] WorldStatus& status() override { return world_.status(); }

    /// Rank of the world for a rank of the group. Throws InternalError when there is none.
    [[nodiscard]] int world_rank(int rank) const;

private:
    Communicator& world_;
    std::vector<int> ranks_;
    int rank_ = -1;
};

/// Ranks first, first + step, ..., `count` of them: consecutive ones work on the same documents, those a group's width
/// apart hold the same shards of different ones.
[[nodiscard]] std::vector<int> ranks_in_steps(int first, int count, int step = 1);

}  // namespace fenwick
