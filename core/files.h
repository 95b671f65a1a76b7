// Files: read-only maps, files that appear whole or not at all, files that grow, and small text files.
// Reading something that is not there or is no regular file is a DataError; a disk, permission or device that stands in
// the way is an UnavailableError. Every message names the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace fenwick {

/// Owns one open file descriptor (-1: none). Move-only; closes on destruction.
class FileDescriptor {
public:
    explicit FileDescriptor(int fd = -1) : fd_(fd) {}
    FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    FileDescriptor(const FileDescriptor&) = delete;
    FileDescriptor& operator=(const FileDescriptor&) = delete;
    ~FileDescriptor();
    [[nodiscard]] int get() const { return fd_; }
    [[nodiscard]] int release() { return std::exchange(fd_, -1); }

private:
    int fd_;
};

enum class EmptyFile { kRefuse, kAllow };
enum class Access { kSequential, kRandom };

/// A whole file as read-only memory. Move-only; views of `bytes()` live as long as the object (moving keeps them
/// valid).
class MappedFile {
public:
    /// Throws DataError (absent, a directory, no regular file, empty unless allowed) or UnavailableError.
    [[nodiscard]] static MappedFile open(const std::filesystem::path& path, EmptyFile empty = EmptyFile::kRefuse);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
    [[nodiscard]] std::int64_t size() const { return size_; }
    /// A hint to the kernel's read-ahead; never fails.
    void advise(Access access) const;
    /// Throws DataError when the file is shorter now than when it was opened. Touching a page that was cut off raises
    /// SIGBUS, so readers call this before each long read.
    void check_not_cut() const;

private:
    MappedFile() = default;
    std::filesystem::path path_;
    FileDescriptor fd_;
    const std::byte* data_ = nullptr;
    std::int64_t size_ = 0;
};

/// Writes a temporary file beside `path`; `commit` makes it durable and gives it its name in one step, so that readers
/// see the old content or the new, also after a crash. Without `commit` the temporary file is removed and `path` is
/// untouched. All failures (no space, no permission, no folder) are UnavailableErrors.
class AtomicFile {
public:
    explicit AtomicFile(std::filesystem::path path);
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    ~AtomicFile();
    void write(std::span<const std::byte> bytes);
    /// Replaces bytes already written: [offset, offset + bytes.size()) must lie within them.
    void overwrite(std::int64_t offset, std::span<const std::byte> bytes);
    /// Call once, last.
    void commit();

private:
    std::filesystem::path path_;
    std::filesystem::path temporary_;
    FileDescriptor fd_;
    std::int64_t size_ = 0;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Removes what AtomicFiles of killed processes left in `folder`; returns how many. Only for a folder whose writers
/// are known to have ended. Throws UnavailableError.
std::int64_t remove_temporaries(const std::filesystem::path& folder);

/// A file that grows at its end: result streams and logs of progress. Throws UnavailableError. A failed `append` leaves
/// the size as it was: no half record stays behind (if the disk allows the cut).
class AppendFile {
public:
    /// An empty file; an existing one is emptied.
    [[nodiscard]] static AppendFile create(const std::filesystem::path& path);
    /// An existing file, to be continued at its end. Throws DataError when there is none.
    [[nodiscard]] static AppendFile open(const std::filesystem::path& path);

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::int64_t size() const { return size_; }
    void append(std::span<const std::byte> bytes);
    void append(std::string_view text);
    /// Replaces bytes that are already there: [offset, offset + bytes.size()) must lie within the file.
    void overwrite(std::int64_t offset, std::span<const std::byte> bytes);
    /// Reads [offset, offset + out.size()). Throws DataError past the end.
    void read(std::int64_t offset, std::span<std::byte> out) const;
    /// Returns when everything written is on the disk.
    void sync();
    /// Cuts the file to its first `bytes` bytes (at most `size()`).
    void truncate(std::int64_t bytes);

private:
    AppendFile(std::filesystem::path path, FileDescriptor fd, std::int64_t size)
        : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}
    std::filesystem::path path_;
    FileDescriptor fd_;
    std::int64_t size_ = 0;
};

/// The whole file. Throws DataError (absent, a directory, longer than `limit` bytes) or UnavailableError.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::int64_t limit);

/// Makes a file's name durable: fsync of `folder`. Throws UnavailableError.
void sync_folder(const std::filesystem::path& folder);

[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace fenwick
