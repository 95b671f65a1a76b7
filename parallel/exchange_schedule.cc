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
        messages_.resize(schedule_.rounds.front().size());
        for (int round = 0; round < schedule_.round_count(); ++round) swap_groups(round);
        spread_tails();
    }

    /// Leaves out what no prefix depends on: from the last round back, a rank's group or tail is needed when it is
    /// sent, or joined with a needed group, later on. Prefixes are always needed.
    void drop_what_serves_the_end() {
        schedule_.brings_end = false;
        std::vector<bool> group_needed(schedule_.rounds.size());
        std::vector<bool> tail_needed(schedule_.rounds.size());
        for (int round = schedule_.round_count() - 1; round >= 0; --round) {
            for (std::size_t rank = 0; rank < schedule_.rounds.size(); ++rank) {
                bool& joins = schedule_.rounds[rank][static_cast<std::size_t>(round)].tail_joins_group;
                joins = joins && group_needed[rank];
                if (joins) tail_needed[rank] = true;
            }
            std::vector<Message>& messages = messages_[static_cast<std::size_t>(round)];
            std::erase_if(messages, [&](const Message& each) {
                const auto to = static_cast<std::size_t>(each.to);
                if (each.use == ListUse::kBeforePrefixAndGroup) return false;
                return each.use == ListUse::kAfterGroup ? !group_needed[to] : !tail_needed[to];
            });
            for (const Message& each : messages) {
                if (each.use == ListUse::kAsTail) tail_needed[static_cast<std::size_t>(each.to)] = false;
            }
            for (const Message& each : messages) {
                (each.list == HeldList::kGroup ? group_needed : tail_needed)[static_cast<std::size_t>(each.from)] =
                    true;
            }
        }
    }

    ExchangeSchedule build() && {
        for (int round = 0; round < schedule_.round_count(); ++round) {
            for (const Message& each : messages_[static_cast<std::size_t>(round)]) {
                at(each.from, round).sends.push_back({each.to, each.list, each.blocks});
                at(each.to, round).receives.push_back({each.from, each.use, each.blocks});
            }
        }
        return std::move(schedule_);
    }

private:
    struct Message {
        int from = 0;
        int to = 0;
        HeldList list = HeldList::kGroup;
        ListUse use = ListUse::kAfterGroup;
        BlockRun blocks;
    };

    [[nodiscard]] BlockRun blocks_of_ranks(int first, int end) const {
        return {schedule_.boundaries[static_cast<std::size_t>(first)],
                schedule_.boundaries[static_cast<std::size_t>(end)]};
    }

    ExchangeRound& at(int rank, int round) {
        return schedule_.rounds[static_cast<std::size_t>(rank)][static_cast<std::size_t>(round)];
    }

    void message(int round, int from, int to, HeldList list, ListUse use, const BlockRun& blocks) {
        if (!blocks.empty()) messages_[static_cast<std::size_t>(round)].push_back({from, to, list, use, blocks});
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
    std::vector<std::vector<Message>> messages_;  ///< by round, in the order of their uses
};

Builder checked_builder(std::vector<std::int64_t> boundaries) {
    if (boundaries.size() < 2) {
        throw InternalError(
            fmt::format("exchange schedule: expected ranks + 1 >= 2 boundaries, found {}", boundaries.size()));
    }
    if (boundaries.front() < 0 || !std::is_sorted(boundaries.begin(), boundaries.end())) {
        throw InternalError(fmt::format("exchange schedule: boundaries must not descend nor be negative, found {}",
                                        fmt::join(boundaries, ", ")));
    }
    return Builder(std::move(boundaries));
}

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
    return checked_builder(std::move(boundaries)).build();
}

ExchangeSchedule make_entering_schedule(std::vector<std::int64_t> boundaries) {
    Builder builder = checked_builder(std::move(boundaries));
    builder.drop_what_serves_the_end();
    return std::move(builder).build();
}

}  // namespace fenwick
