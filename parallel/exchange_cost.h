// What the exchange of a layer costs on a network, from its schedule: pure functions, for plans.
//
// A link has a latency a (seconds for a group of messages, whatever its size) and a bandwidth b (bytes a second, each
// way). Rank p ends round r at
//
//   t(p, r) = max(t(p, r-1), t(q, r-1) for every q whose list p gets in round r) + a + max(sent, received)(p, r) / b
//
// and a rank without messages in a round passes it in no time. The exchange takes max over p of t(p, last). Joins on
// the way are not counted: they take as long as reading a list once, far less than sending it.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/exchange_schedule.h"

namespace fenwick {

struct Link {
    std::string name;
    double latency = 0;    ///< seconds
    double bandwidth = 0;  ///< bytes a second, each way
};

/// "nvlink", "ib", "ethernet", or "MICROSECONDS:GIGABYTES", as "12:305". Throws UsageError for anything else.
///   nvlink    12 us, 305 GB/s: two H200 of one host under NCCL 2.28, grouped send and receive: fits 17.6 us for 1.5
///   MiB
///             and 879 us for 256 MiB; 4 KiB take less (7.3 us), 16 MiB more (81 us, not 67)
///   ib        20 us, 45 GB/s: one 400 Gb/s adapter for each rank; an assumption, not a measurement of ours
///   ethernet  60 us, 2.8 GB/s: 25 Gb/s TCP; an assumption as well
[[nodiscard]] Link parse_link(const std::string& text);

struct ExchangeCost {
    int rounds = 0;
    std::int64_t bytes_sent = 0;  ///< of the rank that sends most
    double seconds = 0;
};

/// The tree exchange of one layer by its schedule.
[[nodiscard]] ExchangeCost tree_cost(const ExchangeSchedule& schedule, std::int64_t summary_bytes, const Link& link);

/// An all-gather at its best: every rank gets the P - 1 other shards' summaries, ceil(log2 P) latencies; it then
/// combines up to P - 1 of them itself, which is not counted.
[[nodiscard]] ExchangeCost all_gather_cost(int ranks, std::int64_t summary_bytes, const Link& link);

/// A state handed from rank to rank: P - 1 steps one after the other.
[[nodiscard]] ExchangeCost ring_cost(int ranks, std::int64_t summary_bytes, const Link& link);

}  // namespace fenwick
