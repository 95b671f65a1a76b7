// A training world: data-parallel groups of sequence-parallel ranks.
//
//   world rank r is rank r mod S of group r / S, S = ranks of a group; a group works on the same documents
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace fenwick {

class TrainingRanks {
public:
    /// Throws UsageError unless the world is a multiple of `sequence_ranks`. `world` outlives this object.
    TrainingRanks(Communicator& world, int sequence_ranks);

    [[nodiscard]] int groups() const { return groups_; }
    [[nodiscard]] int group_number() const { return number_; }
    [[nodiscard]] Communicator& group() const { return *group_; }

private:
    int groups_ = 1;
    int number_ = 0;
    std::unique_ptr<Communicator> group_;
};

}  // namespace fenwick
