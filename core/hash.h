// Hashes of content: XXH3, 128 bits (xxHash). For identity and damage, not against an adversary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace fenwick {

class MappedFile;

/// One running hash. Pieces may be cut anywhere: only the sequence of bytes counts.
class Hasher {
public:
    Hasher();
    void update(std::span<const std::byte> bytes);
    void update(std::string_view text);
    /// Eight little-endian bytes: lengths and numbers between texts, so that neighbouring fields cannot run together.
    void update_number(std::uint64_t value);
    /// 32 lower-case hexadecimal digits of everything so far (xxHash's canonical order); more may follow.
    [[nodiscard]] std::string hex() const;

private:
    struct Free {
        void operator()(XXH3_state_s* state) const;
    };
    std::unique_ptr<XXH3_state_s, Free> state_;
};

/// The hash of a whole file, read once in bounded memory. Throws DataError when the file is cut meanwhile.
[[nodiscard]] std::string hash_of(const MappedFile& file);

}  // namespace fenwick
