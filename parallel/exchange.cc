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
    Buffer<float> packed;
    std::span<const std::byte> bytes;

    explicit OutMessage(const NodeSummaries& list) {
        if (list.size() == 1) {
            bytes = std::as_bytes(std::span(list.values(0), static_cast<std::size_t>(list.floats())));
            return;
        }
        packed = Buffer<float>(list.size() * list.floats());
        for (std::int64_t i = 0; i < list.size(); ++i) {
            std::copy_n(list.values(i), list.floats(), packed.data() + i * list.floats());
        }
        bytes = std::as_bytes(std::span<const float>(packed.data(), static_cast<std::size_t>(packed.size())));
    }
};

struct InMessage {
    std::int64_t nodes = 0;
    std::shared_ptr<Buffer<float>> packed;

    InMessage(const BlockRun& blocks, std::int64_t floats)
        : nodes(static_cast<std::int64_t>(canonical_cover(blocks).size())),
          packed(std::make_shared<Buffer<float>>(nodes * floats)) {}

    [[nodiscard]] std::span<std::byte> bytes() const {
        return std::as_writable_bytes(std::span(packed->data(), static_cast<std::size_t>(packed->size())));
    }

    [[nodiscard]] NodeSummaries unpack(const BlockRun& blocks, std::int64_t floats) const {
        if (nodes == 1) return {floats, blocks, {packed}};
        // Apart from each other, so that a node which lives on does not keep the whole message alive.
        std::vector<Summary> summaries;
        for (std::int64_t i = 0; i < nodes; ++i) {
            auto summary = std::make_shared<Buffer<float>>(floats);
            std::copy_n(packed->data() + i * floats, floats, summary->data());
            summaries.push_back(std::move(summary));
        }
        return {floats, blocks, std::move(summaries)};
    }
};

class Executor {
public:
    Executor(Communicator& comm, const ExchangeSchedule& schedule, NodeSummaries own, const CombineFunction& combine)
        : comm_(comm),
          joiner_(combine),
          floats_(own.floats()),
          prefix_(own.floats(), schedule.shard(comm.rank()).first),
          group_(std::move(own)) {}

    void run(const ExchangeRound& round) {
        std::vector<OutMessage> out;
        std::vector<SendOp> sends;
        out.reserve(round.sends.size());
        for (const ListSend& send : round.sends) {
            const NodeSummaries& list = send.list == HeldList::kGroup ? group_ : tail_;
            check_list("list to send", list, send.blocks, floats_);
            sends.push_back({send.to, out.emplace_back(list).bytes});
        }
        std::vector<InMessage> in;
        std::vector<RecvOp> recvs;
        in.reserve(round.receives.size());
        for (const ListReceive& receive : round.receives) {
            recvs.push_back({receive.from, in.emplace_back(receive.blocks, floats_).bytes()});
        }
        comm_.exchange(sends, recvs);
        for (std::size_t i = 0; i < in.size(); ++i) {
            use(round.receives[i].use, in[i].unpack(round.receives[i].blocks, floats_));
        }
        if (round.tail_joins_group) {
            group_ = joiner_.join(group_, tail_);
            tail_ = NodeSummaries();
        }
    }

    ExchangeResult finish(const NodeSummaries& carried_in) {
        return {joiner_.join(carried_in, prefix_), joiner_.join(carried_in, group_)};
    }

private:
    void use(ListUse how, NodeSummaries list) {
        switch (how) {
            case ListUse::kBeforePrefixAndGroup:
                prefix_ = joiner_.join(list, prefix_);
                group_ = joiner_.join(list, group_);
                return;
            case ListUse::kAfterGroup:
                group_ = joiner_.join(group_, list);
                return;
            case ListUse::kAsTail:
                tail_ = std::move(list);
                return;
        }
    }

    Communicator& comm_;
    NodeJoiner joiner_;
    std::int64_t floats_;
    NodeSummaries prefix_;  ///< from the pass's start to the shard's
    NodeSummaries group_;   ///< of the ranks that this one knows of, itself among them
    NodeSummaries tail_;    ///< of the ranks after its full group, until it joins `group_`
};

}  // namespace

ExchangeResult run_exchange(const ExchangeSchedule& schedule, Communicator& comm, NodeSummaries own_cover,
                            const NodeSummaries& carried_in, const CombineFunction& combine) {
    if (schedule.ranks() != comm.size()) {
        throw InternalError(
            fmt::format("exchange: the schedule is for {} ranks, the world has {}", schedule.ranks(), comm.size()));
    }
    const std::int64_t floats = own_cover.floats();
    check_list("own cover", own_cover, schedule.shard(comm.rank()), floats);
    check_list("carried-in list", carried_in, schedule.carried_in(), floats);
    Executor executor(comm, schedule, std::move(own_cover), combine);
    for (const ExchangeRound& round : schedule.rounds[static_cast<std::size_t>(comm.rank())]) executor.run(round);
    return executor.finish(carried_in);
}

}  // namespace fenwick
