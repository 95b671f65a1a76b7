// IDL structs as bytes: Thrift's binary protocol, as in frames and in the store.
#pragma once

#include <thrift/TConfiguration.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/errors.h"

namespace fenwick {

template <class Struct>
[[nodiscard]] std::string to_bytes(const Struct& value) {
    const auto buffer = std::make_shared<apache::thrift::transport::TMemoryBuffer>();
    apache::thrift::protocol::TBinaryProtocol protocol(buffer);
    value.write(&protocol);
    return buffer->getBufferAsString();
}

/// Nothing in `bytes` can ask for more memory than a few times its own size. Throws DataError for anything but one
/// whole struct.
template <class Struct>
[[nodiscard]] Struct from_bytes(std::span<const char> bytes) {
    namespace thrift = apache::thrift;
    const auto size = static_cast<std::int32_t>(bytes.size());
    constexpr int kDepth = 16;
    try {
        const auto limits = std::make_shared<thrift::TConfiguration>(size + 1, size + 1, kDepth);
        // The buffer is only read: OBSERVE neither copies nor writes.
        const auto buffer = std::make_shared<thrift::transport::TMemoryBuffer>(
            reinterpret_cast<std::uint8_t*>(const_cast<char*>(bytes.data())), static_cast<std::uint32_t>(bytes.size()),
            thrift::transport::TMemoryBuffer::OBSERVE, limits);
        thrift::protocol::TBinaryProtocol protocol(buffer, size, size, true, true);
        Struct value;
        const std::uint32_t used = value.read(&protocol);
        if (used != bytes.size()) throw DataError("bytes behind the end of a message");
        return value;
    } catch (const thrift::TException& error) {
        throw DataError(std::string("malformed message: ") + error.what());
    }
}

}  // namespace fenwick
