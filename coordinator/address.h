// Where a server is, as options say it.
#pragma once

#include <cstdint>
#include <string>

namespace fenwick {

struct Address {
    std::string host;  ///< a name, or an IPv4 or IPv6 address without brackets
    std::uint16_t port = 0;
};

/// "HOST:PORT" or "[IPv6]:PORT". Throws UsageError that names `option`.
[[nodiscard]] Address parse_address(const std::string& text, const std::string& option);

}  // namespace fenwick
