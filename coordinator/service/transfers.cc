// Service's calls that move bytes: uploads in, results out, and the losses of a document that still runs.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "coordinator/output_folder.h"
#include "coordinator/service/job_folders.h"
#include "coordinator/service/service.h"
#include "core/errors.h"
#include "core/files.h"
#include "core/npy.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void invalid(const std::string& message) {
    throw ServiceFault(ServiceCode::INVALID_ARGUMENT, message);
}

/// A client's name for a file of ours: nothing that leads anywhere else.
void check_file_name(const std::string& name) {
    constexpr std::size_t kLongest = 200;
    const bool plain =
        !name.empty() && name.size() <= kLongest && name.front() != '.' && name.find('/') == std::string::npos &&
        std::none_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
    if (!plain) invalid("name: expected a file name of 1 to 200 bytes, not a path, that does not start with a dot");
}

FileDescriptor open_file(const fs::path& path, int flags) {
    FileDescriptor fd(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd.get() < 0) throw UnavailableError(fmt::format("{}: cannot open: {}", path.string(), std::strerror(errno)));
    return fd;
}

void write_at(const FileDescriptor& fd, const fs::path& path, const std::string& data, std::int64_t offset) {
    for (std::size_t done = 0; done < data.size();) {
        const ssize_t wrote = ::pwrite(fd.get(), data.data() + done, data.size() - done,
                                       static_cast<off_t>(offset) + static_cast<off_t>(done));
        if (wrote >= 0) {
            done += static_cast<std::size_t>(wrote);
        } else if (errno == ENOSPC || errno == EDQUOT) {
            constexpr std::int64_t kRetryMs = 10'000;
            throw ServiceFault(ServiceCode::STORAGE_FULL, "the coordinator's disk is full", true, kRetryMs);
        } else if (errno != EINTR) {
            throw UnavailableError(fmt::format("{}: cannot write: {}", path.string(), std::strerror(errno)));
        }
    }
}

/// The results that clients may read, and nothing else of the folder.
bool is_result_name(const std::string& file) {
    if (file == "results.jsonl" || file == "errors.jsonl" || file == "manifest.json") return true;
    return file.starts_with("nll/") && file.ends_with(".npy") && file.find('/', 4) == std::string::npos &&
           file.find("..") == std::string::npos;
}

}  // namespace

idl::Upload Service::begin_upload(const Caller& caller, const std::string& name, std::int64_t size) {
    require_open();
    check_file_name(name);
    if (size < 0) invalid(fmt::format("size {}: expected 0 or more bytes", size));
    std::error_code error;
    const fs::space_info space = fs::space(config_.data, error);
    if (!error && static_cast<std::uintmax_t>(size) > space.available) {
        throw ServiceFault(
            ServiceCode::STORAGE_FULL,
            fmt::format("{} bytes do not fit on the coordinator's disk, which has {} left", size, space.available));
    }
    constexpr std::int64_t kHourMs = 3'600'000;
    idl::Upload upload =
        store_.begin_upload(caller.client, name, size, now_ms() + config_.upload_hours * kHourMs, config_.limits);
    const fs::path folder = folders_->upload_folder(upload.id);
    fs::create_directories(folder, error);
    if (error) throw UnavailableError(fmt::format("{}: cannot create: {}", folder.string(), error.message()));
    (void)open_file(folder / name, O_WRONLY | O_CREAT);
    return upload;
}

idl::Upload Service::put_chunk(const Caller& caller, const std::string& id, std::int64_t offset,
                               const std::string& data, std::int64_t crc) {
    const idl::Upload upload = store_.upload(caller.client, id);
    if (upload.committed) {
        throw ServiceFault(ServiceCode::CONFLICT, fmt::format("upload {}: it is committed", id));
    }
    if (std::ssize(data) > kMaxChunkBytes || data.empty()) {
        invalid(fmt::format("data: expected 1 to {} bytes, found {}", kMaxChunkBytes, data.size()));
    }
    if (offset < 0 || offset > upload.size - std::ssize(data)) {
        invalid(fmt::format("offset {}: {} bytes from there do not lie within the {} of the upload", offset,
                            data.size(), upload.size));
    }
    if (offset > upload.received) {
        throw ServiceFault(ServiceCode::CONFLICT,
                           fmt::format("offset {}: the next byte to come is {}", offset, upload.received));
    }
    const std::int64_t found =
        static_cast<std::int64_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()));
    if (found != crc) {
        throw ServiceFault(ServiceCode::CORRUPT_DATA,
                           fmt::format("crc {}: the bytes that came have {}; send them again", crc, found), true, 0);
    }
    const fs::path path = folders_->upload_folder(id) / upload.name;
    write_at(open_file(path, O_WRONLY), path, data, offset);
    store_.record_received(id, offset + std::ssize(data));
    return store_.upload(caller.client, id);
}

idl::Upload Service::commit_upload(const Caller& caller, const std::string& id) {
    const idl::Upload upload = store_.upload(caller.client, id);
    if (upload.committed) return upload;
    if (upload.received != upload.size) {
        throw ServiceFault(ServiceCode::CONFLICT,
                           fmt::format("upload {}: {} of {} bytes are there", id, upload.received, upload.size));
    }
    const fs::path path = folders_->upload_folder(id) / upload.name;
    const FileDescriptor fd = open_file(path, O_WRONLY);
    if (::fsync(fd.get()) != 0) {
        throw UnavailableError(fmt::format("{}: cannot sync: {}", path.string(), std::strerror(errno)));
    }
    sync_folder(path.parent_path());
    store_.commit_upload(id);
    return store_.upload(caller.client, id);
}

idl::ResultChunk Service::read_result(const Caller& caller, const std::string& job_id, const std::string& file,
                                      std::int64_t offset, std::int32_t max_bytes) const {
    const idl::Job job = own_job(caller, job_id);
    const bool known = is_result_name(file);
    const fs::path path = folders_->output_path(job_id) / file;
    std::error_code error;
    // Losses are there, whole, as soon as their document is; the other files when the job is over.
    const bool ready = known && (file.starts_with("nll/") ? fs::is_regular_file(path, error) : !job.files.empty());
    if (!ready) {
        throw ServiceFault(
            ServiceCode::NOT_FOUND,
            fmt::format("job {}: no result '{}'{}", job_id, file.substr(0, 200),
                        known ? " yet" : "; expected results.jsonl, errors.jsonl, manifest.json or nll/NAME.npy"));
    }
    const FileDescriptor fd = open_file(path, O_RDONLY);
    idl::ResultChunk chunk;
    chunk.offset = offset;
    chunk.size = static_cast<std::int64_t>(fs::file_size(path));
    if (offset < 0 || offset > chunk.size) invalid(fmt::format("offset {}: the file has {} bytes", offset, chunk.size));
    const std::int64_t most = max_bytes <= 0 ? kMaxChunkBytes : std::min<std::int64_t>(max_bytes, kMaxChunkBytes);
    chunk.data.resize(static_cast<std::size_t>(std::min(most, chunk.size - offset)));
    for (std::size_t done = 0; done < chunk.data.size();) {
        const ssize_t got = ::pread(fd.get(), chunk.data.data() + done, chunk.data.size() - done,
                                    static_cast<off_t>(offset) + static_cast<off_t>(done));
        if (got > 0) {
            done += static_cast<std::size_t>(got);
        } else if (got == 0 || errno != EINTR) {
            throw UnavailableError(
                fmt::format("{}: cannot read: {}", path.string(), got == 0 ? "it was cut" : std::strerror(errno)));
        }
    }
    chunk.last = offset + std::ssize(chunk.data) == chunk.size;
    return chunk;
}

std::vector<std::pair<std::int64_t, double>> Service::loss_curve(const std::string& job_id,
                                                                 const std::string& custom_id,
                                                                 std::int64_t points) const {
    const fs::path base = folders_->output_path(job_id) / OutputFolder::nll_name(file_name_for_id(custom_id));
    std::error_code error;
    fs::path path = base;
    if (!fs::exists(path, error)) path += ".part";
    const std::uintmax_t size = fs::file_size(path, error);
    std::vector<std::pair<std::int64_t, double>> curve;
    if (error || size <= NpyStream::kHeaderBytes || points < 1) return curve;
    const auto values = static_cast<std::int64_t>((size - NpyStream::kHeaderBytes) / sizeof(float));
    const FileDescriptor fd = open_file(path, O_RDONLY);
    // A stretch of each point's share is read, not all of it: a curve is to be looked at, and files are long.
    constexpr std::int64_t kSample = 4096;
    points = std::min(points, values);
    std::vector<float> sample;
    for (std::int64_t i = 0; i < points; ++i) {
        const std::int64_t first = values * i / points;
        const std::int64_t count = std::min(kSample, values * (i + 1) / points - first);
        sample.resize(static_cast<std::size_t>(count));
        const auto bytes = static_cast<ssize_t>(sample.size() * sizeof(float));
        const off_t at = NpyStream::kHeaderBytes + static_cast<off_t>(first * static_cast<std::int64_t>(sizeof(float)));
        if (::pread(fd.get(), sample.data(), static_cast<std::size_t>(bytes), at) != bytes) break;  // it was begun anew
        double sum = 0;
        for (const float loss : sample) sum += static_cast<double>(loss);
        curve.emplace_back(first + count / 2, sum / static_cast<double>(count));
    }
    return curve;
}

}  // namespace fenwick
