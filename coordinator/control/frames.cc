#include "coordinator/control/frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>

#include "coordinator/idl/bytes.h"
#include "core/errors.h"

namespace fenwick {
namespace {

namespace asio = boost::asio;

asio::awaitable<void> read_all(Stream& stream, char* out, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes;) {
        done += co_await stream.read_some(asio::buffer(out + done, bytes - done));
    }
}

}  // namespace

std::string encode_frame(const idl::ControlMessage& message) {
    const std::string body = to_bytes(message);
    const auto size = static_cast<std::uint32_t>(body.size());
    std::string frame;
    frame.reserve(body.size() + 4);
    for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>((size >> shift) & 0xff));
    return frame + body;
}

asio::awaitable<idl::ControlMessage> read_frame(Stream& stream, std::int64_t most) {
    std::array<char, 4> head = {};
    co_await read_all(stream, head.data(), head.size());
    std::int64_t size = 0;
    for (const char byte : head) size = size << 8 | static_cast<unsigned char>(byte);
    if (size < 1 || size > most) {
        throw DataError(fmt::format("a frame of {} bytes; expected 1 to {}", size, most));
    }
    // Memory follows what has come, not what is announced.
    constexpr std::int64_t kStep = std::int64_t{1} << 18;
    std::string body;
    while (std::ssize(body) < size) {
        const std::size_t old = body.size();
        body.resize(static_cast<std::size_t>(
            std::min(size, std::ssize(body) + std::max<std::int64_t>(kStep, std::ssize(body)))));
        co_await read_all(stream, body.data() + old, body.size() - old);
    }
    co_return from_bytes<idl::ControlMessage>(body);
}

}  // namespace fenwick
