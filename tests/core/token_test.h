// Helpers of the tests about documents and tokenizers.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/documents.h"
#include "core/tokenizer.h"

namespace fenwick::testing {

/// CASES E1: a byte order mark, CR LF, NUL, and bytes that are no UTF-8 from offset 7 on.
inline const std::string odd_bytes("\xEF\xBB\xBF\x61\x0D\x0A\x00\xFF\xE2\x82\x62\x0A", 12);
inline const std::string utf16_bytes("\xFF\xFE\x61\x00\x62\x00\x0A\x00", 8);

inline std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
    std::vector<std::int32_t> all;
    tokenizer.encode(text, "text",
                     [&](std::span<const std::int32_t> ids) { all.insert(all.end(), ids.begin(), ids.end()); });
    return all;
}

inline std::vector<std::int32_t> read_range(const TokenReader& reader, std::int64_t first, std::int64_t count) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    reader.read(first, ids);
    return ids;
}

inline std::vector<std::int32_t> read_all(const TokenReader& reader) {
    return read_range(reader, 0, reader.size());
}

/// Starts a new measurement of this process's peak memory.
inline void reset_peak_memory() {
    std::ofstream("/proc/self/clear_refs") << "5";
}

/// Peak resident memory in bytes since the last reset, mapped file pages included.
inline std::int64_t peak_memory() {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word) {
        std::int64_t kibibytes = 0;
        if (word == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
    }
    return -1;
}

}  // namespace fenwick::testing
