// A folder of its own for one test, removed at the end, and small helpers to fill it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/scratch_folder.h"

namespace fenwick::testing {

class TemporaryFolder : public ScratchFolder {
public:
    TemporaryFolder() : ScratchFolder("fenwick-test-") {}
    [[nodiscard]] std::int64_t entries() const {
        return std::distance(std::filesystem::directory_iterator(path()), std::filesystem::directory_iterator());
    }
};

inline void put(const std::filesystem::path& path, std::string_view content) {
    std::ofstream out(path, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) throw std::runtime_error("cannot write " + path.string());
}

inline std::string get(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot read " + path.string());
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// `size` bytes at `data`, to be compared bit by bit.
inline std::string bytes_at(const void* data, std::size_t size) {
    return {static_cast<const char*>(data), size};
}

/// The message of the Error of type E that `call` throws; fails by another exception otherwise.
template <class E, class Call>
std::string message_of(Call&& call) {
    try {
        call();
    } catch (const E& error) {
        return error.what();
    }
    throw std::runtime_error("no error was thrown");
}

}  // namespace fenwick::testing
