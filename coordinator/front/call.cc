#include "coordinator/front/call.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <thrift/TApplicationException.h>
#include <thrift/TConfiguration.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>

#include <cstring>
#include <exception>

namespace fenwick {
namespace {

using apache::thrift::TApplicationException;
using apache::thrift::TConfiguration;
using apache::thrift::TProcessor;
using apache::thrift::TProcessorEventHandler;
using apache::thrift::protocol::T_CALL;
using apache::thrift::protocol::T_EXCEPTION;
using apache::thrift::protocol::T_ONEWAY;
using apache::thrift::protocol::TMessageType;
using apache::thrift::transport::TMemoryBuffer;
using Protocol = apache::thrift::protocol::TBinaryProtocolT<TMemoryBuffer>;

/// What the generated code tells about the call that it runs.
class CallEvents final : public TProcessorEventHandler {
public:
    void* getContext(const char* name, void* /*server_context*/) override {
        const char* const dot = std::strrchr(name, '.');
        method = dot == nullptr ? name : dot + 1;  // "Service.method"
        return nullptr;
    }
    void handlerError(void* /*context*/, const char* /*name*/) override {
        undeclared = true;
        try {
            throw;  // the generated code calls this inside its catch block
        } catch (const std::exception& error) {
            text = error.what();
        } catch (...) {
            text = "an exception of another type";
        }
    }
    std::string method;
    std::string text;
    bool undeclared = false;
};

std::shared_ptr<TMemoryBuffer> request_buffer(std::span<const std::uint8_t> request, const FrontLimits& limits) {
    // A message may not claim more than its frame holds.
    const auto config = std::make_shared<TConfiguration>(static_cast<int>(request.size()),
                                                         static_cast<int>(request.size()), limits.nesting);
    // OBSERVE reads only, though the parameter is not const.
    return std::make_shared<TMemoryBuffer>(const_cast<std::uint8_t*>(request.data()),
                                           static_cast<std::uint32_t>(request.size()), TMemoryBuffer::OBSERVE, config);
}

std::shared_ptr<Protocol> request_protocol(std::span<const std::uint8_t> request, const FrontLimits& limits) {
    constexpr bool kStrictRead = true;
    return std::make_shared<Protocol>(request_buffer(request, limits), limits.string_bytes, limits.container_elements,
                                      kStrictRead, true);
}

/// Four bytes are kept free in front of what is written to it: the frame's length.
std::shared_ptr<TMemoryBuffer> reply_buffer() {
    auto buffer = std::make_shared<TMemoryBuffer>(512U);
    constexpr std::uint8_t kLengthToCome[4] = {};
    buffer->write(kLengthToCome, sizeof kLengthToCome);
    return buffer;
}

std::vector<std::uint8_t> framed(const std::shared_ptr<TMemoryBuffer>& buffer) {
    std::uint8_t* data = nullptr;
    std::uint32_t size = 0;
    buffer->getBuffer(&data, &size);
    if (size <= sizeof(std::uint32_t)) return {};  // oneway
    const std::uint32_t length = htonl(size - static_cast<std::uint32_t>(sizeof(std::uint32_t)));
    std::memcpy(data, &length, sizeof length);
    return {data, data + size};
}

std::vector<std::uint8_t> exception_frame(const std::string& method, std::int32_t sequence,
                                          TApplicationException::TApplicationExceptionType type,
                                          const std::string& message) {
    const auto buffer = reply_buffer();
    Protocol out(buffer);
    out.writeMessageBegin(method, T_EXCEPTION, sequence);
    TApplicationException(type, message).write(&out);
    out.writeMessageEnd();
    return framed(buffer);
}

/// The first word is the protocol's version and the kind of message. It is looked at as bytes: Thrift itself takes any
/// byte for a TMessageType.
void check_is_call(std::span<const std::uint8_t> request) {
    const bool known = request.size() >= 4 && request[0] == 0x80 && request[1] == 0x01 &&
                       (request[3] == T_CALL || request[3] == T_ONEWAY);
    if (!known)
        throw apache::thrift::TException("expected a call in the strict binary protocol, found another message");
}

}  // namespace

CallReply run_call(TProcessor& processor, std::span<const std::uint8_t> request, const FrontLimits& limits,
                   CallContext& context) {
    CallReply reply;
    reply.method = "unknown";
    std::string name;
    TMessageType type = T_CALL;
    std::int32_t sequence = 0;
    const auto events = std::make_shared<CallEvents>();
    try {
        check_is_call(request);
        request_protocol(request, limits)->readMessageBegin(name, type, sequence);
        if (name.size() > 64) throw apache::thrift::TException("the method's name is longer than any");
        const auto out = reply_buffer();
        processor.setEventHandler(events);
        const bool done =
            processor.process(request_protocol(request, limits), std::make_shared<Protocol>(out), nullptr);
        if (!events->method.empty()) reply.method = events->method;
        if (events->undeclared) {
            spdlog::error("request {} of {}: {}: {}", context.request_id, context.peer, reply.method, events->text);
            context.outcome = "INTERNAL";
            context.wait.reset();
            reply.frame = exception_frame(
                name, sequence, TApplicationException::INTERNAL_ERROR,
                fmt::format("internal error; the server's log has it as request {}", context.request_id));
            return reply;
        }
        if (reply.method == "unknown") context.outcome = "unknown_method";
        reply.malformed = !done;
        reply.frame = framed(out);
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        // Only what the decoder says about the client's own bytes comes here: handlers' exceptions end above.
        context.outcome = "malformed";
        context.wait.reset();
        if (!events->method.empty()) reply.method = events->method;
        reply.malformed = true;
        reply.frame = exception_frame(name.substr(0, 64), sequence, TApplicationException::PROTOCOL_ERROR,
                                      fmt::format("the request cannot be read: {}", error.what()));
    }
    return reply;
}

}  // namespace fenwick
