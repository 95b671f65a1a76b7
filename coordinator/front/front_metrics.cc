#include "coordinator/front/front_metrics.h"

namespace fenwick {
namespace {

prometheus::Counter& counter(prometheus::Registry& registry, const char* name, const char* help,
                             const prometheus::Labels& labels) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
}

}  // namespace

const char* to_text(Drop reason) {
    switch (reason) {
        case Drop::kCap:
            return "connection_cap";
        case Drop::kHandshake:
            return "tls_handshake";
        case Drop::kFrameTime:
            return "frame_deadline";
        case Drop::kWriteTime:
            return "write_deadline";
        case Drop::kIdle:
            return "idle";
        case Drop::kFrameSize:
            return "frame_size";
        case Drop::kBuffered:
            return "buffer_budget";
        case Drop::kMalformed:
            return "malformed";
    }
    return "unknown";
}

PortMetrics::PortMetrics(prometheus::Registry& registry, const std::string& port)
    : accepted_(counter(registry, "fenwick_connections_accepted_total", "Connections accepted.", {{"port", port}})),
      open_(prometheus::BuildGauge()
                .Name("fenwick_connections_open")
                .Help("Connections open now.")
                .Register(registry)
                .Add({{"port", port}})),
      received_(counter(registry, "fenwick_received_bytes_total", "Bytes received from clients.", {{"port", port}})),
      sent_(counter(registry, "fenwick_sent_bytes_total", "Bytes sent to clients.", {{"port", port}})) {
    for (int reason = 0; reason < kDropReasons; ++reason) {
        drops_[reason] =
            &counter(registry, "fenwick_connections_dropped_total", "Connections that the server ended, by reason.",
                     {{"port", port}, {"reason", to_text(static_cast<Drop>(reason))}});
    }
}

void PortMetrics::opened() {
    accepted_.Increment();
    open_.Increment();
}
void PortMetrics::closed() {
    open_.Decrement();
}
void PortMetrics::dropped(Drop reason) {
    drops_[static_cast<int>(reason)]->Increment();
}
void PortMetrics::received(std::size_t bytes) {
    received_.Increment(static_cast<double>(bytes));
}
void PortMetrics::sent(std::size_t bytes) {
    sent_.Increment(static_cast<double>(bytes));
}

CallMetrics::CallMetrics(prometheus::Registry& registry)
    : calls_(prometheus::BuildCounter()
                 .Name("fenwick_rpc_calls_total")
                 .Help("Calls answered, by method and outcome.")
                 .Register(registry)),
      seconds_(prometheus::BuildHistogram()
                   .Name("fenwick_rpc_call_seconds")
                   .Help("Time to answer a call, from its last byte received to its reply ready; waits included.")
                   .Register(registry)) {}

void CallMetrics::called(const std::string& method, const std::string& outcome, double seconds) {
    calls_.Add({{"method", method}, {"outcome", outcome}}).Increment();
    seconds_
        .Add({{"method", method}}, prometheus::Histogram::BucketBoundaries{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                                                           0.2, 0.5, 1, 2, 5, 10, 30, 60})
        .Observe(seconds);
}

}  // namespace fenwick
