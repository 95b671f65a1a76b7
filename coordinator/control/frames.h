// The control plane's frames over a stream: 4 bytes of length, big-endian, then a ControlMessage (idl/bytes.h).
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <string>

#include "coordinator/front/stream.h"
#include "coordinator/idl/fenwick_types.h"

namespace fenwick {

[[nodiscard]] std::string encode_frame(const idl::ControlMessage& message);

/// The next frame. `most`: bytes that it may have; checked before memory is taken. Throws DataError for a frame that is
/// too long, empty or malformed, boost::system::system_error when the stream ends.
[[nodiscard]] boost::asio::awaitable<idl::ControlMessage> read_frame(Stream& stream, std::int64_t most);

}  // namespace fenwick
