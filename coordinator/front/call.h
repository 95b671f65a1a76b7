// One request frame through a generated Thrift processor, whatever the frame holds.
#pragma once

#include <thrift/TProcessor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/front/limits.h"

namespace fenwick {

/// What the handlers of a connection and the front share about the call at hand. One thread at a time.
struct CallContext {
    std::string peer;                             ///< "address:port"
    std::string certificate_name;                 ///< of the client's verified certificate; empty without one
    std::string request_id;                       ///< new for each call; in its log lines and errors
    std::string outcome = "ok";                   ///< a handler that answers with an error puts its code's name here
    std::chrono::steady_clock::time_point begun;  ///< when the request was complete; repeats keep it

    /// A handler whose answer is not due yet sets this and returns anything: the front drops that answer and makes the
    /// same call again when the topic is called out in the WaitRoom, or at `until`.
    struct Wait {
        std::string topic;
        std::chrono::steady_clock::time_point until;
    };
    std::optional<Wait> wait;
};

struct CallReply {
    std::vector<std::uint8_t> frame;  ///< with its length in front; empty for a oneway call
    std::string method;               ///< of the IDL; "unknown" when the request names none of its methods
    bool malformed = false;           ///< the request could not be read: the connection is to be closed
};

/// Decodes `request` (a frame without its length, Thrift's strict binary protocol), runs the call, encodes the answer.
/// A request that cannot be read, or is beyond the limits, is answered with a TApplicationException (PROTOCOL_ERROR);
/// an exception that the IDL does not declare is logged and answered by INTERNAL_ERROR with the request's id, never
/// with its text. Does not throw but for lack of memory.
[[nodiscard]] CallReply run_call(apache::thrift::TProcessor& processor, std::span<const std::uint8_t> request,
                                 const FrontLimits& limits, CallContext& context);

}  // namespace fenwick
