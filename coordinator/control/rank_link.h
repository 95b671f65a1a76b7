// The connection of one rank, as the desk uses it. All calls may come from any thread and return at once.
#pragma once

#include <functional>
#include <string>

#include "coordinator/idl/fenwick_types.h"

namespace fenwick {

class RankLink {
public:
    virtual ~RankLink() = default;
    virtual void send(const idl::ControlMessage& message) = 0;
    /// Ends the connection after what was sent before, or at once when the rank does not take it.
    virtual void close() = 0;
    /// Runs `work` where this rank's messages are handled, after those that came before: one at a time, and free to
    /// wait for disks.
    virtual void work(std::function<void()> work) = 0;
    /// Whether frames of the rank are waiting because work on earlier ones is not done: then silence is not its fault.
    [[nodiscard]] virtual bool held_back() const = 0;
};

// One message of each kind, as a frame's union.
#define FENWICK_AS_MESSAGE(Type, setter)                                          \
    [[nodiscard]] inline idl::ControlMessage as_message(const idl::Type& value) { \
        idl::ControlMessage message;                                              \
        message.setter(value);                                                    \
        return message;                                                           \
    }
FENWICK_AS_MESSAGE(Hello, __set_hello)
FENWICK_AS_MESSAGE(Welcome, __set_welcome)
FENWICK_AS_MESSAGE(Refused, __set_refused)
FENWICK_AS_MESSAGE(Heartbeat, __set_heartbeat)
FENWICK_AS_MESSAGE(Ready, __set_ready)
FENWICK_AS_MESSAGE(Grant, __set_grant)
FENWICK_AS_MESSAGE(StateRequest, __set_stateRequest)
FENWICK_AS_MESSAGE(StateChunk, __set_stateChunk)
FENWICK_AS_MESSAGE(TokensRequest, __set_tokensRequest)
FENWICK_AS_MESSAGE(Tokens, __set_tokens)
FENWICK_AS_MESSAGE(Losses, __set_losses)
FENWICK_AS_MESSAGE(SavePoint, __set_savePoint)
FENWICK_AS_MESSAGE(Saved, __set_saved)
FENWICK_AS_MESSAGE(GiveBack, __set_giveBack)
FENWICK_AS_MESSAGE(Closed, __set_closed)
FENWICK_AS_MESSAGE(Revoked, __set_revoked)
FENWICK_AS_MESSAGE(Recall, __set_recall)
FENWICK_AS_MESSAGE(Drain, __set_drain)
FENWICK_AS_MESSAGE(Stop, __set_stop)
FENWICK_AS_MESSAGE(Bye, __set_bye)
#undef FENWICK_AS_MESSAGE

}  // namespace fenwick
