#include "parallel/sub_communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/errors.h"

namespace fenwick {

SubCommunicator::SubCommunicator(Communicator& world, std::vector<int> ranks)
    : world_(world), ranks_(std::move(ranks)) {
    const std::set<int> distinct(ranks_.begin(), ranks_.end());
    const auto mine = std::find(ranks_.begin(), ranks_.end(), world.rank());
    if (distinct.size() != ranks_.size() || mine == ranks_.end() || *distinct.begin() < 0 ||
        *distinct.rbegin() >= world.size()) {
        throw InternalError(fmt::format("group of ranks: expected distinct ranks of 0..{}, {} among them, found {}",
                                        world.size() - 1, world.rank(), fmt::join(ranks_, ", ")));
    }
    rank_ = static_cast<int>(mine - ranks_.begin());
}

int SubCommunicator::world_rank(int rank) const {
    if (rank < 0 || rank >= size()) {
        throw InternalError(fmt::format("group of {} ranks: there is no rank {}", size(), rank));
    }
    return ranks_[static_cast<std::size_t>(rank)];
}

void SubCommunicator::exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) {
    std::vector<SendOp> world_sends(sends.begin(), sends.end());
    std::vector<RecvOp> world_recvs(recvs.begin(), recvs.end());
    for (SendOp& send : world_sends) send.to = world_rank(send.to);
    for (RecvOp& recv : world_recvs) recv.from = world_rank(recv.from);
    world_.exchange(world_sends, world_recvs);
}

std::vector<int> ranks_in_steps(int first, int count, int step) {
    std::vector<int> ranks;
    ranks.reserve(static_cast<std::size_t>(std::max(count, 0)));
    for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
    return ranks;
}

}  // namespace fenwick
