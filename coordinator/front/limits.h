// What a network client may cost: every number here is checked before memory is taken or time is given.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace fenwick {

struct FrontLimits {
    /// Bytes of one frame (RPC) or of one request (HTTP), without its length. A frame of exactly this size is served.
    std::int64_t frame_bytes = std::int64_t{8} << 20;
    /// Bytes of unfinished requests and of replies not yet taken, over all connections and beyond the first 64 KiB of
    /// each, which are always free; the connection that would exceed it is dropped.
    std::int64_t buffered_bytes = std::int64_t{128} << 20;
    /// Elements of one list, set or map, and bytes of one string or binary of a request.
    std::int32_t container_elements = 65536;
    std::int32_t string_bytes = std::int32_t{8} << 20;
    /// How deep structs and containers of a request may nest.
    int nesting = 16;
    /// Open connections. At the cap the oldest that never completed a request gives way; else the newcomer is refused.
    int connections = 2048;
    /// From a connection's first byte, or TLS handshake, of a request to its last: absolute, not restarted by a byte.
    std::chrono::milliseconds frame_time{30'000};
    /// For a client to take one whole reply.
    std::chrono::milliseconds write_time{30'000};
    /// Between the end of one request and the start of the next.
    std::chrono::milliseconds idle_time{600'000};
    /// After a failed accept (no descriptors left): else the loop would spin.
    std::chrono::milliseconds accept_pause{100};
};

}  // namespace fenwick
