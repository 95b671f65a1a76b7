#include "parallel/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/errors.h"

namespace fenwick {
namespace {

void check_list(const char* name, const NodeSummaries& list, const BlockRun& blocks, std::int64_t floats) {
    if (list.blocks() == blocks && list.floats() == floats) return;
    throw InternalError(fmt::format("exchange: {}: expected blocks [{}, {}) of {} floats, found [{}, {}) of {}", name,
                                    blocks.first, blocks.end, floats, list.blocks().first, list.blocks().end,
                                    list.floats()));
}

/// One list as one message. A single node is sent from where it is and received where it stays.
struct OutMessage {
    std::shared_ptr<SummaryBuffer> packed;
    std::span<const std::byte> bytes;

    OutMessage(const NodeSummaries& list, SummaryMemory& memory) {
        const float* values = list.values(0);
        if (list.size() > 1) {
            packed = memory.allocate(list.size() * list.floats());
            for (std::int64_t i = 0; i < list.size(); ++i) {
                memory.copy(list.values(i), list.floats(), packed->data() + i * list.floats());
            }
            values = packed->data();
        }
        bytes = std::as_bytes(std::span(values, static_cast<std::size_t>(list.size() * list.floats())));
    }
};

struct InMessage {
    std::int64_t nodes = 0;
    std::shared_ptr<SummaryBuffer> packed;

    InMessage(const BlockRun& blocks, std::int64_t floats, SummaryMemory& memory)
        : nodes(static_cast<std::int64_t>(canonical_cover(blocks).size())), packed(memory.allocate(nodes * floats)) {}

    [[nodiscard]] std::span<std::byte> bytes() const {
        return std::as_writable_bytes(std::span(packed->data(), static_cast<std::size_t>(packed->size())));
    }

    [[nodiscard]] NodeSummaries unpack(const BlockRun& blocks, std::int64_t floats, SummaryMemory& memory) const {
        if (nodes == 1) return {floats, blocks, {packed}};
        // Apart from each other, so that a node which lives on does not keep the whole message alive.
        std::vector<Summary> summaries;
        for (std::int64_t i = 0; i < nodes; ++i) {
            const std::shared_ptr<SummaryBuffer> summary = memory.allocate(floats);
            memory.copy(packed->data() + i * floats, floats, summary->data());
            summaries.push_back(summary);
        }
        return {floats, blocks, std::move(summaries)};
    }
};

class Executor {
public:
    /// `tape` may be null.
    Executor(ExchangeMemory& memory, const ExchangeSchedule& schedule, NodeSummaries own, ExchangeTape* tape)
        : memory_(memory),
          tape_(tape),
          brings_end_(schedule.brings_end),
          joiner_(memory.summaries(), tape != nullptr ? &tape->formed : nullptr),
          floats_(own.floats()),
          prefix_(own.floats(), schedule.shard(memory.rank()).first),
          group_(std::move(own)) {}

    /// Joins with the group are left for the next round, so that the entering nodes do not wait for them; where no end
    /// is wanted, for a round that sends the group.
    void run(int number, const ExchangeRound& round) {
        const bool sends_group = std::any_of(round.sends.begin(), round.sends.end(),
                                             [](const ListSend& send) { return send.list == HeldList::kGroup; });
        if (brings_end_ || sends_group) bring_group_up_to_date();
        SummaryMemory& lists = memory_.summaries();
        ExchangeTape::Round record{number, tape_ != nullptr ? tape_->formed.size() : 0, {}, {}};
        std::vector<OutMessage> out;
        std::vector<SendOp> sends;
        out.reserve(round.sends.size());
        for (const ListSend& send : round.sends) {
            const NodeSummaries& list = send.list == HeldList::kGroup ? group_ : tail_;
            check_list("list to send", list, send.blocks, floats_);
            sends.push_back({send.to, out.emplace_back(list, lists).bytes});
            record.sent.push_back({send.to, list});
        }
        std::vector<InMessage> in;
        std::vector<RecvOp> recvs;
        in.reserve(round.receives.size());
        for (const ListReceive& receive : round.receives) {
            recvs.push_back({receive.from, in.emplace_back(receive.blocks, floats_, lists).bytes()});
        }
        if (!sends.empty() || !recvs.empty()) memory_.exchange(number, sends, recvs);
        for (std::size_t i = 0; i < in.size(); ++i) {
            NodeSummaries list = in[i].unpack(round.receives[i].blocks, floats_, lists);
            record.received.push_back({round.receives[i].from, list});
            use(round.receives[i].use, std::move(list));
        }
        tail_joins_group_ = tail_joins_group_ || round.tail_joins_group;
        if (tape_ != nullptr && !(sends.empty() && recvs.empty())) tape_->rounds.push_back(std::move(record));
    }

    [[nodiscard]] NodeSummaries entering(const NodeSummaries& carried_in) { return joiner_.join(carried_in, prefix_); }
    [[nodiscard]] NodeSummaries end(const NodeSummaries& carried_in) {
        bring_group_up_to_date();
        return joiner_.join(carried_in, group_);
    }

private:
    void use(ListUse how, NodeSummaries list) {
        switch (how) {
            case ListUse::kBeforePrefixAndGroup:
                prefix_ = joiner_.join(list, prefix_);
                before_group_.push_back(std::move(list));
                return;
            case ListUse::kAfterGroup:
                after_group_.push_back(std::move(list));
                return;
            case ListUse::kAsTail:
                tail_ = std::move(list);
                return;
        }
    }

    void bring_group_up_to_date() {
        for (const NodeSummaries& list : before_group_) group_ = joiner_.join(list, group_);
        for (const NodeSummaries& list : after_group_) group_ = joiner_.join(group_, list);
        before_group_.clear();
        after_group_.clear();
        if (!tail_joins_group_) return;
        group_ = joiner_.join(group_, tail_);
        tail_ = NodeSummaries();
        tail_joins_group_ = false;
    }

    ExchangeMemory& memory_;
    ExchangeTape* tape_;
    bool brings_end_;
    NodeJoiner joiner_;
    std::vector<NodeSummaries> before_group_;  ///< received, not yet joined with the group
    std::vector<NodeSummaries> after_group_;
    bool tail_joins_group_ = false;
    std::int64_t floats_;
    NodeSummaries prefix_;  ///< from the pass's start to the shard's
    NodeSummaries group_;   ///< of the ranks that this one knows of, itself among them
    NodeSummaries tail_;    ///< of the ranks after its full group, until it joins `group_`
};

}  // namespace

ExchangeResult run_exchange(const ExchangeSchedule& schedule, ExchangeMemory& memory, NodeSummaries own_cover,
                            const NodeSummaries& carried_in, const std::function<void()>& on_entering,
                            ExchangeTape* tape) {
    if (schedule.ranks() != memory.size()) {
        throw InternalError(
            fmt::format("exchange: the schedule is for {} ranks, the world has {}", schedule.ranks(), memory.size()));
    }
    if (tape != nullptr && schedule.brings_end) {
        throw InternalError("exchange: a tape needs a schedule without the end list (make_entering_schedule)");
    }
    const std::int64_t floats = carried_in.floats();
    check_list("carried-in list", carried_in, schedule.carried_in(), floats);
    const std::vector<ExchangeRound>& rounds = schedule.rounds[static_cast<std::size_t>(memory.rank())];
    const auto brings_prefix = [](const ExchangeRound& round) {
        return std::any_of(round.receives.begin(), round.receives.end(),
                           [](const ListReceive& receive) { return receive.use == ListUse::kBeforePrefixAndGroup; });
    };
    const std::ptrdiff_t rounds_to_entering =
        std::find_if(rounds.rbegin(), rounds.rend(), brings_prefix).base() - rounds.begin();
    check_list("own cover", own_cover, schedule.shard(memory.rank()), floats);
    if (tape != nullptr) *tape = {memory.rank(), memory.size(), own_cover, {}, {}, {}};
    Executor executor(memory, schedule, std::move(own_cover), tape);
    ExchangeResult result;
    const auto enter_after = [&](std::ptrdiff_t done) {
        if (done != rounds_to_entering) return;
        result.entering = executor.entering(carried_in);
        if (tape != nullptr) tape->entering = result.entering;
        if (on_entering) on_entering();
    };
    enter_after(0);
    for (std::ptrdiff_t round = 0; round < std::ssize(rounds); ++round) {
        executor.run(static_cast<int>(round), rounds[static_cast<std::size_t>(round)]);
        enter_after(round + 1);
    }
    if (schedule.brings_end) result.end = owned(executor.end(carried_in), memory.summaries());
    return result;
}

ExchangeResult run_exchange(const ExchangeSchedule& schedule, Communicator& comm, NodeSummaries own_cover,
                            const NodeSummaries& carried_in, const CombineFunction& combine, ExchangeTape* tape) {
    HostExchange memory(comm, combine);
    return run_exchange(schedule, memory, std::move(own_cover), carried_in, nullptr, tape);
}

}  // namespace fenwick
