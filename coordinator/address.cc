#include "coordinator/address.h"

#include <fmt/format.h>

#include <charconv>

#include "core/errors.h"

namespace fenwick {

Address parse_address(const std::string& text, const std::string& option) {
    const std::size_t colon = text.rfind(':');
    const char* const end = text.data() + text.size();
    Address address;
    const auto parsed = colon == std::string::npos ? std::from_chars_result{text.data(), std::errc::invalid_argument}
                                                   : std::from_chars(text.data() + colon + 1, end, address.port);
    if (colon == 0 || parsed.ec != std::errc() || parsed.ptr != end || address.port == 0) {
        throw UsageError(fmt::format("{}: expected HOST:PORT, found \"{}\"", option, text));
    }
    address.host = text.substr(0, colon);
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
        address.host = address.host.substr(1, address.host.size() - 2);
    }
    return address;
}

}  // namespace fenwick
