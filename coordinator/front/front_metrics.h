// What the network side counts, for Prometheus. Labels are few and fixed: no document, job or client names.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>

namespace fenwick {

/// Why a connection was ended by the server.
enum class Drop { kCap, kHandshake, kFrameTime, kWriteTime, kIdle, kFrameSize, kBuffered, kMalformed };
inline constexpr int kDropReasons = 8;
[[nodiscard]] const char* to_text(Drop reason);

/// Counters of one port. Safe from any thread; lives as long as the registry.
class PortMetrics {
public:
    /// `port`: "rpc" or "http", the label of all its series.
    PortMetrics(prometheus::Registry& registry, const std::string& port);
    void opened();
    void closed();
    void dropped(Drop reason);
    void received(std::size_t bytes);
    void sent(std::size_t bytes);

private:
    prometheus::Counter& accepted_;
    prometheus::Gauge& open_;
    prometheus::Counter& received_;
    prometheus::Counter& sent_;
    prometheus::Counter* drops_[kDropReasons];
};

/// Counters of calls. `method` comes from the IDL (or is "unknown"), so that it has few values.
class CallMetrics {
public:
    explicit CallMetrics(prometheus::Registry& registry);
    /// `outcome`: "ok", or the name of an error code.
    void called(const std::string& method, const std::string& outcome, double seconds);

private:
    prometheus::Family<prometheus::Counter>& calls_;
    prometheus::Family<prometheus::Histogram>& seconds_;
};

}  // namespace fenwick
