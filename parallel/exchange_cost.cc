#include "parallel/exchange_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <string_view>
#include <vector>

#include "core/errors.h"
#include "core/fenwick.h"

namespace fenwick {
namespace {

bool parse_positive(std::string_view text, double& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value > 0;
}

std::int64_t message_bytes(const BlockRun& blocks, std::int64_t summary_bytes) {
    return static_cast<std::int64_t>(canonical_cover(blocks).size()) * summary_bytes;
}

}  // namespace

Link parse_link(const std::string& text) {
    if (text == "nvlink") return {text, 12e-6, 305e9};
    if (text == "ib") return {text, 20e-6, 45e9};
    if (text == "ethernet") return {text, 60e-6, 2.8e9};
    const std::size_t colon = text.find(':');
    double microseconds = 0;
    double gigabytes = 0;
    const std::string_view all(text);
    if (colon == std::string::npos || !parse_positive(all.substr(0, colon), microseconds) ||
        !parse_positive(all.substr(colon + 1), gigabytes)) {
        throw UsageError(fmt::format(
            "--link {}: expected nvlink, ib, ethernet, or a latency in microseconds and a bandwidth in GB/s, as 12:305",
            text));
    }
    return {text, microseconds * 1e-6, gigabytes * 1e9};
}

ExchangeCost tree_cost(const ExchangeSchedule& schedule, std::int64_t summary_bytes, const Link& link) {
    ExchangeCost cost;
    cost.rounds = schedule.round_count();
    const auto ranks = static_cast<std::size_t>(schedule.ranks());
    std::vector<double> now(ranks, 0.0);
    std::vector<std::int64_t> sent_in_all(ranks, 0);
    for (std::size_t round = 0; round < static_cast<std::size_t>(cost.rounds); ++round) {
        std::vector<double> next = now;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            const ExchangeRound& mine = schedule.rounds[rank][round];
            if (mine.sends.empty() && mine.receives.empty()) continue;
            std::int64_t sent = 0;
            std::int64_t received = 0;
            double start = now[rank];
            for (const ListSend& send : mine.sends) sent += message_bytes(send.blocks, summary_bytes);
            for (const ListReceive& receive : mine.receives) {
                received += message_bytes(receive.blocks, summary_bytes);
                start = std::max(start, now[static_cast<std::size_t>(receive.from)]);
            }
            next[rank] = start + link.latency + static_cast<double>(std::max(sent, received)) / link.bandwidth;
            sent_in_all[rank] += sent;
        }
        now = std::move(next);
    }
    cost.seconds = *std::max_element(now.begin(), now.end());
    cost.bytes_sent = *std::max_element(sent_in_all.begin(), sent_in_all.end());
    return cost;
}

ExchangeCost all_gather_cost(int ranks, std::int64_t summary_bytes, const Link& link) {
    const int rounds = std::bit_width(static_cast<unsigned>(ranks - 1));
    const std::int64_t bytes = (ranks - 1) * summary_bytes;
    return {rounds, bytes, rounds * link.latency + static_cast<double>(bytes) / link.bandwidth};
}

ExchangeCost ring_cost(int ranks, std::int64_t summary_bytes, const Link& link) {
    const int steps = ranks - 1;
    return {steps, ranks > 1 ? summary_bytes : 0,
            steps * (link.latency + static_cast<double>(summary_bytes) / link.bandwidth)};
}

}  // namespace fenwick
