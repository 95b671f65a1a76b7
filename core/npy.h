// NumPy's .npy files: a stream of float32 results, and the header of arrays of token ids.
// Format: NumPy enhancement proposal 1 (numpy/lib/format.py), versions 1.0, 2.0 and 3.0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "core/files.h"

namespace fenwick {

/// What a .npy file of integers holds: `count` elements from `data_offset` on.
struct NpyHeader {
    int element_bytes = 0;  ///< 1, 2, 4 or 8
    bool is_signed = false;
    bool big_endian = false;  ///< always false for one byte
    std::int64_t count = 0;
    std::int64_t data_offset = 0;  ///< from the start of the file; data_offset + count * element_bytes is its size
};

/// Reads and checks the header of an integer array of one dimension, or of two with one row. Throws DataError naming
/// `path` and what is wrong: no .npy file, version, header, dtype, shape, or a data part of another size.
[[nodiscard]] NpyHeader read_npy_header(const MappedFile& file, const std::filesystem::path& path);

/// A one-dimensional float32 array that grows block by block. Until `finish` the header says 0 values, so a file that
/// was left half way never passes for a whole one. The header is 128 bytes whatever the length: equal values make equal
/// files however they were cut into blocks and interrupted. Throws UnavailableError for a disk that fails.
class NpyStream {
public:
    static constexpr std::int64_t kHeaderBytes = 128;

    [[nodiscard]] static NpyStream create(const std::filesystem::path& path);
    /// Continues after the first `values` values; later ones are cut off. Throws DataError when the file is absent, is
    /// no file of this class, or holds fewer.
    [[nodiscard]] static NpyStream reopen(const std::filesystem::path& path, std::int64_t values);

    void append(std::span<const float> values);
    [[nodiscard]] std::int64_t values() const { return values_; }
    void sync() { file_.sync(); }
    /// Writes the final length into the header and syncs. Nothing may follow.
    void finish();

private:
    NpyStream(AppendFile file, std::int64_t values) : file_(std::move(file)), values_(values) {}
    AppendFile file_;
    std::int64_t values_ = 0;
};

}  // namespace fenwick
