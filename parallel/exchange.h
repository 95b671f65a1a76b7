// Executes an exchange schedule on summaries: entering states' nodes and the pass's end list for every rank.
//
//   entering(p) = cover(0, f_p)      end = cover(0, f_P)      (f: the schedule's boundaries; see exchange_schedule.h)
//
// Values are only ever formed as combine(left child, right child) of one node, so their bits depend neither on the
// number of ranks nor on who formed them.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/exchange_schedule.h"
#include "parallel/node_summaries.h"

namespace fenwick {

struct ExchangeResult {
    NodeSummaries entering;  ///< the buckets of the rank's first block, oldest first; raw, not carried to the block
    NodeSummaries end;       ///< complete nodes of the whole prefix after the pass: the next pass's `carried_in`. Left
                             ///< out (no list at all) when the schedule does not bring it
};

/// One rank's account of an exchange, for its reverse (exchange_backward.h): what it sent, got and formed, in order.
/// Keeps the nodes alive, but those of `own_cover` are as borrowed as they were.
struct ExchangeTape {
    struct PeerList {
        int peer = 0;
        NodeSummaries list;
    };
    struct Round {
        int number = 0;
        std::size_t formed_before = 0;  ///< entries of `formed` that precede the round's messages
        std::vector<PeerList> sent;
        std::vector<PeerList> received;
    };
    int rank = 0;
    int ranks = 0;  ///< 0: nothing was recorded
    NodeSummaries own_cover;
    NodeSummaries entering;
    std::vector<FormedNode> formed;
    std::vector<Round> rounds;  ///< those with messages
};

/// Memory of the lists, with messages between the ranks' memories.
class ExchangeMemory {
public:
    virtual ~ExchangeMemory() = default;
    [[nodiscard]] virtual SummaryMemory& summaries() = 0;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    /// One round's group of messages, as Communicator::exchange; `bytes` are of the summaries' memory.
    virtual void exchange(int round, std::span<const SendOp> sends, std::span<const RecvOp> recvs) = 0;
};

/// Host memory, and messages by a communicator. `combine` may be null where nothing is joined.
class HostExchange final : public ExchangeMemory {
public:
    HostExchange(Communicator& comm, CombineFunction combine) : comm_(comm), summaries_(std::move(combine)) {}
    [[nodiscard]] SummaryMemory& summaries() override { return summaries_; }
    [[nodiscard]] int rank() const override { return comm_.rank(); }
    [[nodiscard]] int size() const override { return comm_.size(); }
    void exchange(int /*round*/, std::span<const SendOp> sends, std::span<const RecvOp> recvs) override {
        comm_.exchange(sends, recvs);
    }

private:
    Communicator& comm_;
    HostSummaries summaries_;
};

/// Collective: every rank calls it with the same schedule. `own_cover`: the list of this rank's complete blocks
/// (`cover_of_blocks`), borrowed until the exchange is over; `carried_in`: the previous pass's `end`, or the empty list
/// before block 0. One message per list and peer, packed. `on_entering`, where given, is called as soon as `entering`
/// is known (its values in the order of the memory's stream): on rank 0 before anything else, on others after the last
/// round that brings lists from the left. `tape`, where given, is overwritten. Throws InternalError when a list is not
/// what the schedule says, or when a tape is to be made by a schedule that brings the end (its reverse would carry
/// zeros), PeerLostError when a peer failed.
[[nodiscard]] ExchangeResult run_exchange(const ExchangeSchedule& schedule, ExchangeMemory& memory,
                                          NodeSummaries own_cover, const NodeSummaries& carried_in,
                                          const std::function<void()>& on_entering = nullptr,
                                          ExchangeTape* tape = nullptr);

/// The same in host memory.
[[nodiscard]] ExchangeResult run_exchange(const ExchangeSchedule& schedule, Communicator& comm, NodeSummaries own_cover,
                                          const NodeSummaries& carried_in, const CombineFunction& combine,
                                          ExchangeTape* tape = nullptr);

}  // namespace fenwick
