// `file_name_for_id` of core/documents.h.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/documents.h"
#include "core/hash.h"

namespace fenwick {
namespace {

constexpr std::size_t kMaxNameBytes = 200;  // file systems allow 255; endings and prefixes need some

bool is_plain(char c) {
    constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return kPlain.find(c) != std::string_view::npos;
}

std::string percent(char c) {
    return fmt::format("%{:02X}", static_cast<unsigned char>(c));
}

}  // namespace

std::string file_name_for_id(const std::string& id) {
    if (id.empty()) return "%-";  // no escape: these have two digits
    if (id == "." || id == "..") return id == "." ? "%2E" : "%2E%2E";
    Hasher hasher;
    hasher.update(id);
    const std::string ending = "%-" + hasher.hex();
    std::string name;
    std::size_t kept = 0;  // whole characters that leave room for the ending
    for (const char c : id) {
        if (name.size() <= kMaxNameBytes - ending.size()) kept = name.size();
        if (name.size() > kMaxNameBytes) break;
        if (is_plain(c)) {
            name += c;
        } else {
            name += percent(c);
        }
    }
    if (name.size() <= kMaxNameBytes) return name;
    return name.substr(0, kept) + ending;
}

}  // namespace fenwick
