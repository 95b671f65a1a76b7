#include "parallel/exchange_backward.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace fenwick {
namespace {

class Reverse {
public:
    Reverse(const ExchangeTape& tape, ExchangeMemory& memory, SummaryGradients& gradients)
        : tape_(tape), memory_(memory), gradients_(gradients), floats_(tape.own_cover.floats()) {}

    NodeSummaries run(std::span<const float* const> d_entering) {
        for (std::int64_t i = 0; i < tape_.entering.size(); ++i) {
            const float* given = d_entering[static_cast<std::size_t>(i)];
            gradients_.add(given, floats_, gradient(tape_.entering.summary(i))->data());
        }
        std::size_t formed = tape_.formed.size();
        for (auto round = tape_.rounds.rbegin(); round != tape_.rounds.rend(); ++round) {
            while (formed > round->formed_before) split(tape_.formed[--formed]);
            send_back(*round);
        }
        while (formed > 0) split(tape_.formed[--formed]);
        std::vector<Summary> own;
        for (std::int64_t i = 0; i < tape_.own_cover.size(); ++i) own.push_back(gradient(tape_.own_cover.summary(i)));
        return {floats_, tape_.own_cover.blocks(), std::move(own)};
    }

private:
    using Gradient = std::shared_ptr<SummaryBuffer>;

    /// Of a node as this rank holds it; zeros at first.
    const Gradient& gradient(const Summary& node) {
        Gradient& found = of_[node.get()];
        if (found == nullptr) {
            found = memory_.summaries().allocate(floats_);
            gradients_.zero(floats_, found->data());
        }
        return found;
    }

    /// The gradient of a node that nothing earlier depends on: it is complete, and forgotten here. Null: zeros.
    Gradient take(const Summary& node) {
        const auto found = of_.extract(node.get());
        return found.empty() ? nullptr : std::move(found.mapped());
    }

    void split(const FormedNode& node) {
        const Gradient d_out = take(node.formed);
        if (d_out == nullptr) return;
        gradients_.combine_backward(node.left->data(), node.right->data(), d_out->data(), gradient(node.left)->data(),
                                    gradient(node.right)->data());
    }

    [[nodiscard]] Gradient allocate(const NodeSummaries& list) {
        return memory_.summaries().allocate(list.size() * floats_);
    }
    [[nodiscard]] static std::span<float> values(const Gradient& message) {
        return {message->data(), static_cast<std::size_t>(message->size())};
    }

    void send_back(const ExchangeTape::Round& round) {
        std::vector<Gradient> messages;
        std::vector<SendOp> sends;
        std::vector<RecvOp> recvs;
        for (const ExchangeTape::PeerList& got : round.received) {
            const Gradient& message = messages.emplace_back(allocate(got.list));
            for (std::int64_t i = 0; i < got.list.size(); ++i) {
                float* place = message->data() + i * floats_;
                if (const Gradient d = take(got.list.summary(i))) {
                    memory_.summaries().copy(d->data(), floats_, place);
                } else {
                    gradients_.zero(floats_, place);
                }
            }
            sends.push_back({got.peer, std::as_bytes(values(message))});
        }
        const std::size_t first_received = messages.size();
        for (const ExchangeTape::PeerList& sent : round.sent) {
            const Gradient& message = messages.emplace_back(allocate(sent.list));
            recvs.push_back({sent.peer, std::as_writable_bytes(values(message))});
        }
        memory_.exchange(round.number, sends, recvs);
        for (std::size_t m = 0; m < round.sent.size(); ++m) {
            const NodeSummaries& list = round.sent[m].list;
            const float* received = messages[first_received + m]->data();
            for (std::int64_t i = 0; i < list.size(); ++i) {
                gradients_.add(received + i * floats_, floats_, gradient(list.summary(i))->data());
            }
        }
    }

    const ExchangeTape& tape_;
    ExchangeMemory& memory_;
    SummaryGradients& gradients_;
    std::int64_t floats_;
    std::map<const SummaryBuffer*, Gradient> of_;
};

}  // namespace

NodeSummaries run_exchange_backward(const ExchangeTape& tape, ExchangeMemory& memory, SummaryGradients& gradients,
                                    std::span<const float* const> d_entering) {
    if (tape.rank != memory.rank() || tape.ranks != memory.size()) {
        throw InternalError(fmt::format("exchange, backward: the tape is of rank {} of {}, this is rank {} of {}",
                                        tape.rank, tape.ranks, memory.rank(), memory.size()));
    }
    if (std::ssize(d_entering) != tape.entering.size()) {
        throw InternalError(fmt::format("exchange, backward: expected gradients of {} entering nodes, found {}",
                                        tape.entering.size(), d_entering.size()));
    }
    return Reverse(tape, memory, gradients).run(d_entering);
}

NodeSummaries run_exchange_backward(const ExchangeTape& tape, Communicator& comm,
                                    const CombineBackwardFunction& combine_backward,
                                    std::span<const float* const> d_entering) {
    HostExchange memory(comm, nullptr);  // nothing is joined on the way back
    HostSummaryGradients gradients(combine_backward);
    return run_exchange_backward(tape, memory, gradients, d_entering);
}

}  // namespace fenwick
