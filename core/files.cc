#include "core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "core/errors.h"

namespace fenwick {
namespace {

constexpr std::string_view kTemporaryPrefix = ".fenwick-";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr mode_t kFileMode = 0666;  // the umask takes away what the user does not want

std::string errno_text(int error) {
    return std::generic_category().message(error);
}

[[noreturn]] void throw_unavailable(const std::filesystem::path& path, const char* action, int error) {
    std::string advice;
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) advice = "; make room or raise the limit, then run again";
    if (error == EACCES || error == EPERM || error == EROFS)
        advice = "; check the permissions of the file and its folder";
    throw UnavailableError(fmt::format("{}: cannot {}: {}{}", path.string(), action, errno_text(error), advice));
}

[[noreturn]] void throw_open_error(const std::filesystem::path& path, int error) {
    if (error == ENOENT || error == ENOTDIR || error == EISDIR || error == ENAMETOOLONG || error == ELOOP) {
        throw DataError(fmt::format("{}: cannot open for reading: {}", path.string(), errno_text(error)));
    }
    throw_unavailable(path, "open for reading", error);
}

struct OpenedFile {
    FileDescriptor fd;
    std::int64_t size = 0;
};

OpenedFile open_regular(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a pipe must not wait for a writer; it changes nothing for regular files.
    FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) throw_open_error(path, errno);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) throw_unavailable(path, "stat", errno);
    if (S_ISDIR(status.st_mode)) throw DataError(fmt::format("{}: is a directory; a file is needed", path.string()));
    if (!S_ISREG(status.st_mode)) {
        throw DataError(fmt::format("{}: is no regular file (a device, pipe or socket)", path.string()));
    }
    return {std::move(fd), status.st_size};
}

/// Bytes read: less than out.size() only at the end of the file.
std::size_t read_fully(int fd, const std::filesystem::path& path, std::int64_t offset, std::span<std::byte> out) {
    std::size_t done = 0;
    while (done < out.size()) {
        const ssize_t n = ::pread(fd, out.data() + done, out.size() - done, offset + static_cast<off_t>(done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw_unavailable(path, "read", errno);
        if (n == 0) break;
        done += static_cast<std::size_t>(n);
    }
    return done;
}

/// Returns 0 or the errno of the failed write.
int write_fully(int fd, std::int64_t offset, std::span<const std::byte> bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t n = ::pwrite(fd, bytes.data() + done, bytes.size() - done, offset + static_cast<off_t>(done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return ENOSPC;
        done += static_cast<std::size_t>(n);
    }
    return 0;
}

/// Bytes to be replaced must be there.
void check_inside(const std::filesystem::path& path, std::int64_t offset, std::span<const std::byte> bytes,
                  std::int64_t size) {
    if (offset < 0 || offset > size || std::ssize(bytes) > size - offset) {
        throw InternalError(fmt::format("{}: overwrite of {} bytes at {}, past the size {}", path.string(),
                                        bytes.size(), offset, size));
    }
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
    const auto folder = path.parent_path();
    return folder.empty() ? std::filesystem::path(".") : folder;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
}

MappedFile MappedFile::open(const std::filesystem::path& path, EmptyFile empty) {
    OpenedFile opened = open_regular(path);
    if (opened.size == 0 && empty == EmptyFile::kRefuse) {
        throw DataError(fmt::format("{}: the file is empty", path.string()));
    }
    MappedFile file;
    file.path_ = path;
    file.size_ = opened.size;
    if (file.size_ > 0) {
        const auto bytes = static_cast<std::size_t>(file.size_);
        void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened.fd.get(), 0);
        if (address == MAP_FAILED) throw_unavailable(path, "map", errno);
        file.data_ = static_cast<const std::byte*>(address);
    }
    file.fd_ = std::move(opened.fd);
    return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_));
}

void MappedFile::advise(Access access) const {
    if (data_ == nullptr) return;
    const int advice = access == Access::kSequential ? MADV_SEQUENTIAL : MADV_RANDOM;
    if (::madvise(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_), advice) != 0) {
        spdlog::debug("{}: madvise: {}", path_.string(), errno_text(errno));
    }
}

void MappedFile::check_not_cut() const {
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0) throw_unavailable(path_, "stat", errno);
    if (status.st_size < size_) {
        throw DataError(fmt::format("{}: the file was cut while in use: {} bytes when opened, {} now", path_.string(),
                                    size_, static_cast<std::int64_t>(status.st_size)));
    }
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
    static std::atomic<std::uint64_t> counter{0};
    // A name left by a killed process with the same number (or by another host) is passed over.
    for (int attempt = 0; attempt < 1000; ++attempt) {
        temporary_ = folder_of(path_) /
                     fmt::format("{}{}-{}{}", kTemporaryPrefix, ::getpid(), counter.fetch_add(1), kTemporarySuffix);
        fd_ = FileDescriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode));
        if (fd_.get() >= 0) return;
        if (errno != EEXIST) break;
    }
    throw_unavailable(path_, "create a temporary file beside it", errno);
}

AtomicFile::~AtomicFile() {
    if (!temporary_.empty() && ::unlink(temporary_.c_str()) != 0) {
        spdlog::warn("{}: cannot remove the temporary file: {}", temporary_.string(), errno_text(errno));
    }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
    if (const int error = write_fully(fd_.get(), size_, bytes); error != 0) throw_unavailable(path_, "write", error);
    size_ += static_cast<std::int64_t>(bytes.size());
}

void AtomicFile::overwrite(std::int64_t offset, std::span<const std::byte> bytes) {
    check_inside(path_, offset, bytes, size_);
    if (const int error = write_fully(fd_.get(), offset, bytes); error != 0) throw_unavailable(path_, "write", error);
}

void AtomicFile::commit() {
    if (::fsync(fd_.get()) != 0) throw_unavailable(path_, "sync", errno);
    if (::close(fd_.release()) != 0) throw_unavailable(path_, "close", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0)
        throw_unavailable(path_, "rename the finished file to it", errno);
    temporary_.clear();
    sync_folder(folder_of(path_));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
    AtomicFile file(path);
    file.write(bytes_of(text));
    file.commit();
}

std::int64_t remove_temporaries(const std::filesystem::path& folder) {
    std::int64_t removed = 0;
    std::error_code error;
    std::filesystem::directory_iterator it(folder, error);
    for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
        const std::string name = it->path().filename().string();
        if (!name.starts_with(kTemporaryPrefix) || !name.ends_with(kTemporarySuffix)) continue;
        if (::unlink(it->path().c_str()) != 0) throw_unavailable(it->path(), "remove", errno);
        ++removed;
    }
    if (error) throw_unavailable(folder, "list", error.value());
    return removed;
}

AppendFile AppendFile::create(const std::filesystem::path& path) {
    FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, kFileMode));
    if (fd.get() < 0) throw_unavailable(path, "create", errno);
    return {path, std::move(fd), 0};
}

AppendFile AppendFile::open(const std::filesystem::path& path) {
    FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (fd.get() < 0) {
        if (errno == ENOENT) throw DataError(fmt::format("{}: there is no such file to continue", path.string()));
        throw_unavailable(path, "open for writing", errno);
    }
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) throw_unavailable(path, "stat", errno);
    return {path, std::move(fd), status.st_size};
}

void AppendFile::append(std::span<const std::byte> bytes) {
    if (const int error = write_fully(fd_.get(), size_, bytes); error != 0) {
        if (::ftruncate(fd_.get(), size_) != 0) {
            spdlog::warn("{}: cannot cut back a record that was half written: {}", path_.string(), errno_text(errno));
        }
        throw_unavailable(path_, "write", error);
    }
    size_ += static_cast<std::int64_t>(bytes.size());
}

void AppendFile::append(std::string_view text) {
    append(bytes_of(text));
}

void AppendFile::overwrite(std::int64_t offset, std::span<const std::byte> bytes) {
    check_inside(path_, offset, bytes, size_);
    if (const int error = write_fully(fd_.get(), offset, bytes); error != 0) throw_unavailable(path_, "write", error);
}

void AppendFile::read(std::int64_t offset, std::span<std::byte> out) const {
    if (offset < 0 || read_fully(fd_.get(), path_, offset, out) != out.size()) {
        throw DataError(
            fmt::format("{}: needs {} bytes at offset {}, the file ends before", path_.string(), out.size(), offset));
    }
}

void AppendFile::sync() {
    if (::fsync(fd_.get()) != 0) throw_unavailable(path_, "sync", errno);
}

void AppendFile::truncate(std::int64_t bytes) {
    if (bytes < 0 || bytes > size_) {
        throw InternalError(fmt::format("{}: cut to {} bytes, but the size is {}", path_.string(), bytes, size_));
    }
    if (::ftruncate(fd_.get(), bytes) != 0) throw_unavailable(path_, "cut", errno);
    size_ = bytes;
}

std::string read_text_file(const std::filesystem::path& path, std::int64_t limit) {
    const OpenedFile file = open_regular(path);
    if (file.size > limit) {
        throw DataError(fmt::format("{}: {} bytes, more than the limit of {} bytes", path.string(), file.size, limit));
    }
    std::string text(static_cast<std::size_t>(file.size), '\0');
    text.resize(read_fully(file.fd.get(), path, 0, std::as_writable_bytes(std::span<char>(text))));
    return text;
}

void sync_folder(const std::filesystem::path& folder) {
    const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) throw_unavailable(folder, "open the folder", errno);
    // EINVAL: the file system has no such operation and writes names through.
    if (::fsync(fd.get()) != 0 && errno != EINVAL) throw_unavailable(folder, "sync the folder", errno);
}

}  // namespace fenwick
