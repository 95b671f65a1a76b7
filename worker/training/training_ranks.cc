#include "worker/training/training_ranks.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "parallel/sub_communicator.h"

namespace fenwick {

TrainingRanks::TrainingRanks(Communicator& world, int sequence_ranks) {
    if (sequence_ranks < 1 || world.size() % sequence_ranks != 0) {
        throw UsageError(fmt::format("parallel.sequence is {}: expected a divisor of the number of ranks, which is {}",
                                     sequence_ranks, world.size()));
    }
    groups_ = world.size() / sequence_ranks;
    number_ = world.rank() / sequence_ranks;
    group_ = std::make_unique<SubCommunicator>(world, ranks_in_steps(number_ * sequence_ranks, sequence_ranks));
}

}  // namespace fenwick
