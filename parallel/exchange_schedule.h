// The exchange of node summaries between the ranks of a pass, computed before it is run: DESIGN section 4.
//
// With boundaries f_0 <= f_1 <= ... <= f_P, rank p's complete blocks are [f_p, f_(p+1)); cover(a, b) is the list of the
// fewest complete nodes of blocks [a, b), and + joins the lists of neighbouring runs. Before, rank p has
// cover(f_p, f_(p+1)), and every rank has carried_in = cover(0, f_0). After, rank p has
//
//   entering(p) = carried_in + prefix(p) = cover(0, f_p)      prefix(p) = cover(f_0, f_p)
//   end         = carried_in + group(p)  = cover(0, f_P)      group(p)  = cover(f_0, f_P)
//
// Round b, ranks p and q = p xor 2^b, p < q: they hold the lists of their groups of 2^b ranks.
//   p sends group(p):  prefix(q) = group(p) + prefix(q),  group(q) = group(p) + group(q)
//   q sends group(q):  group(p) = group(p) + group(q)     (when q's group is a full one)
//
// When P is no power of two, write it as 2^k1 + 2^k2 + ..., k1 > k2 > ...: the ranks fall into full groups G1, G2, ...
// of these sizes. Some of Gi's ranks have no partner in round ki, and would never hear of the tail Ti = G(i+1), G(i+2),
// ... All of Ti's ranks know Ti's list before that round, so they spread it over Gi while they would be idle: each rank
// that has it hands it on once a round, twice at most in round ki, where it is joined: group(p) = group(p) + tail. So
// every rank has both results after ceil(log2 P) rounds, and no rank sends more than three messages in one.
//
// Training runs a document in one pass and needs no `end`: `make_entering_schedule` leaves out every message on which
// no entering(p) depends (the tails, and the groups that no rank to the right waits for).
//
// Empty lists are not sent. With 2^k ranks of equal power-of-two shards a list is one summary: k are sent by a rank in
// all.
#pragma once

#include <cstdint>
#include <vector>

#include "core/fenwick.h"

namespace fenwick {

enum class HeldList {
    kGroup,  ///< starts as the rank's own cover
    kTail,   ///< was received as such and is handed on
};

/// "Send your `list`", which then covers `blocks`.
struct ListSend {
    int to = 0;
    HeldList list = HeldList::kGroup;
    BlockRun blocks;  ///< never empty; the message is one summary for each node of its canonical cover, in order
};

enum class ListUse {
    kBeforePrefixAndGroup,  ///< prefix = received + prefix, group = received + group
    kAfterGroup,            ///< group = group + received
    kAsTail,                ///< tail = received
};

struct ListReceive {
    int from = 0;
    ListUse use = ListUse::kAfterGroup;
    BlockRun blocks;
};

/// What one rank does in one round: sends and receives as one group of messages, then the uses in order of `receives`.
struct ExchangeRound {
    std::vector<ListSend> sends;
    std::vector<ListReceive> receives;
    bool tail_joins_group = false;  ///< after the uses: group = group + tail
};

struct ExchangeSchedule {
    std::vector<std::int64_t> boundaries;            ///< [P + 1], complete blocks only
    std::vector<std::vector<ExchangeRound>> rounds;  ///< [P][ceil(log2 P)]
    bool brings_end = true;                          ///< else only entering(p) is known after the last round

    [[nodiscard]] int ranks() const { return static_cast<int>(rounds.size()); }
    [[nodiscard]] int round_count() const { return static_cast<int>(rounds.front().size()); }
    [[nodiscard]] BlockRun carried_in() const { return {0, boundaries.front()}; }
    [[nodiscard]] BlockRun shard(int rank) const;

    [[nodiscard]] std::int64_t messages_sent(int rank) const;
    [[nodiscard]] std::int64_t summaries_sent(int rank) const;
    [[nodiscard]] std::int64_t summaries_received(int rank) const;
    [[nodiscard]] std::int64_t largest_message() const;  ///< in summaries, over all ranks
};

/// `boundaries` [P + 1]: first complete block of each rank, and the end of the last (`ShardPlan` makes them). Shards
/// may be empty. O(P log P). Throws InternalError when there is no rank or the boundaries are negative or descend.
[[nodiscard]] ExchangeSchedule make_exchange_schedule(std::vector<std::int64_t> boundaries);

/// The part of it that entering(p) needs, p = 0..P-1: each of its messages is one that some entering(p) depends on.
/// O(P log P). Throws as make_exchange_schedule.
[[nodiscard]] ExchangeSchedule make_entering_schedule(std::vector<std::int64_t> boundaries);

}  // namespace fenwick
