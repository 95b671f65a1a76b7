#include "parallel/exchange_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/errors.h"

namespace fenwick {
namespace {

std::int64_t cover_size(const BlockRun& run) {
    return static_cast<std::int64_t>(canonical_cover(run).size());
}

class Builder {
public:
    explicit Builder(std::vector<std::int64_t> boundaries) {
        const auto ranks = boundaries.size() - 1;
        schedule_.boundaries = std::move(boundaries);
        schedule_.rounds.assign(ranks, std::vector<ExchangeRound>(std::bit_width(ranks - 1)));
    }

    ExchangeSchedule build() && {
        for (int round = 0; round < schedule_.round_count(); ++round) swap_groups(round);
        spread_tails();
        return std::move(schedule_);
    }

private:
    [[nodiscard]] BlockRun blocks_of_ranks(int first, int end) const {
        return {schedule_.boundaries[static_cast<std::size_t>(first)],
                schedule_.boundaries[static_cast<std::size_t>(end)]};
    }

    ExchangeRound& at(int rank, int round) {
        return schedule_.rounds[static_cast<std::size_t>(rank)][static_cast<std::size_t>(round)];
    }

    void message(int round, int from, int to, HeldList list, ListUse use, const BlockRun& blocks) {
        if (blocks.empty()) return;
        at(from, round).sends.push_back({to, list, blocks});
        at(to, round).receives.push_back({from, use, blocks});
    }

    void swap_groups(int round) {
        const int width = 1 << round;
        const int ranks = schedule_.ranks();
        for (int right = width; right < ranks; ++right) {
            if ((right & width) == 0) continue;
            const int left = right - width;
            const int middle = right / width * width;  // first rank of the right group
            message(round, left, right, HeldList::kGroup, ListUse::kBeforePrefixAndGroup,
                    blocks_of_ranks(middle - width, middle));
            if (middle + width <= ranks) {
                message(round, right, left, HeldList::kGroup, ListUse::kAfterGroup,
                        blocks_of_ranks(middle, middle + width));
            }
        }
    }

    /// Full groups from the right end: each learns the list of all ranks to its right.
    void spread_tails() {
        const int ranks = schedule_.ranks();
        int known_round = std::countr_zero(static_cast<unsigned>(ranks));  // the first in which the tail can be sent
        int tail_first = ranks - (1 << known_round);
        while (tail_first > 0) {
            const int last_round = std::countr_zero(static_cast<unsigned>(tail_first));
            const int group_first = tail_first - (1 << last_round);
            spread_tail(group_first, tail_first, known_round, last_round);
            known_round = last_round + 1;
            tail_first = group_first;
        }
    }

    void spread_tail(int group_first, int tail_first, int known_round, int last_round) {
        const BlockRun tail = blocks_of_ranks(tail_first, schedule_.ranks());
        if (tail.empty()) return;
        int served = 0;
        for (int round = known_round; round <= last_round; ++round) {
            const int holders = schedule_.ranks() - tail_first + served;
            const int remaining = tail_first - group_first - served;
            const int count = round < last_round ? std::min(holders, remaining) : remaining;
            for (int i = 0; i < count; ++i) {
                const int holder = i % holders;  // the tail's ranks first, then the group's in order
                const bool in_tail = tail_first + holder < schedule_.ranks();
                const int from =
                    in_tail ? tail_first + holder : group_first + holder - (schedule_.ranks() - tail_first);
                message(round, from, group_first + served + i, in_tail ? HeldList::kGroup : HeldList::kTail,
                        ListUse::kAsTail, tail);
            }
            served += count;
        }
        for (int rank = group_first; rank < tail_first; ++rank) at(rank, last_round).tail_joins_group = true;
    }

    ExchangeSchedule schedule_;
};

}  // namespace

BlockRun ExchangeSchedule::shard(int rank) const {
    return {boundaries.at(static_cast<std::size_t>(rank)), boundaries.at(static_cast<std::size_t>(rank) + 1)};
}

std::int64_t ExchangeSchedule::messages_sent(int rank) const {
    std::int64_t count = 0;
    for (const ExchangeRound& round : rounds.at(static_cast<std::size_t>(rank))) {
        count += static_cast<std::int64_t>(round.sends.size());
    }
    return count;
}

std::int64_t ExchangeSchedule::summaries_sent(int rank) const {
    std::int64_t count = 0;
    for (const ExchangeRound& round : rounds.at(static_cast<std::size_t>(rank))) {
        for (const ListSend& send : round.sends) count += cover_size(send.blocks);
    }
    return count;
}

std::int64_t ExchangeSchedule::summaries_received(int rank) const {
    std::int64_t count = 0;
    for (const ExchangeRound& round : rounds.at(static_cast<std::size_t>(rank))) {
        for (const ListReceive& receive : round.receives) count += cover_size(receive.blocks);
    }
    return count;
}

std::int64_t ExchangeSchedule::largest_message() const {
    std::int64_t largest = 0;
    for (const auto& rank_rounds : rounds) {
        for (const ExchangeRound& round : rank_rounds) {
            for (const ListSend& send : round.sends) largest = std::max(largest, cover_size(send.blocks));
        }
    }
    return largest;
}

ExchangeSchedule make_exchange_schedule(std::vector<std::int64_t> boundaries) {
    if (boundaries.size() < 2) {
        throw InternalError(
            fmt::format("exchange schedule: expected ranks + 1 >= 2 boundaries, found {}", boundaries.size()));
    }
    if (boundaries.front() < 0 || !std::is_sorted(boundaries.begin(), boundaries.end())) {
        throw InternalError(fmt::format("exchange schedule: boundaries must not descend nor be negative, found {}",
                                        fmt::join(boundaries, ", ")));
    }
    return Builder(std::move(boundaries)).build();
}

}  // namespace fenwick
