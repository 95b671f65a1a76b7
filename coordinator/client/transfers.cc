#include "coordinator/client/transfers.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "coordinator/store/service_fault.h"
#include "core/errors.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"

namespace fenwick {
namespace {

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kManifestLimit = std::int64_t{1} << 30;
constexpr const char* kManifest = "manifest.json";

struct ResultFile {
    std::string name;  ///< relative to the output folder
    std::int64_t bytes = 0;
    std::string xxh3;
};

/// A name that a coordinator gives decides where we write: only plain names, and those one folder down, will do.
void check_name(const std::string& name) {
    const std::filesystem::path path(name);
    bool plain = !name.empty() && path.is_relative() && name.find('\\') == std::string::npos;
    for (const auto& part : path) plain = plain && part != ".." && part != "." && !part.empty();
    if (!plain)
        throw DataError(fmt::format(
            "the coordinator's manifest names a file {}: expected a name within the output folder", in_quotes(name)));
}

std::vector<ResultFile> files_of(const std::string& manifest) {
    std::vector<ResultFile> files;
    const nlohmann::json json = parse_json(manifest, kManifest);
    for (const nlohmann::json& entry : ConfigReader(json, kManifest).get_array("files")) {
        const ConfigReader reader(entry, kManifest);
        files.push_back({reader.require_string("name"), reader.require_int("bytes"), reader.require_string("xxh3")});
        check_name(files.back().name);
    }
    return files;
}

bool is_there(const std::filesystem::path& path, const ResultFile& wanted) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (error || static_cast<std::int64_t>(size) != wanted.bytes) return false;
    const MappedFile file = MappedFile::open(path, EmptyFile::kAllow);
    Hasher hasher;
    hasher.update(file.bytes());
    return hasher.hex() == wanted.xxh3;
}

/// Calls `take` with the file's pieces in order.
void read_result(ServiceClient& client, const std::string& job_id, const std::string& name,
                 const std::function<void(const idl::ResultChunk&)>& take) {
    std::int64_t offset = 0;
    for (;;) {
        const idl::ResultChunk chunk =
            client.get(&idl::FenwickClient::readResult, job_id, name, offset, static_cast<std::int32_t>(kChunkBytes));
        offset += static_cast<std::int64_t>(chunk.data.size());
        take(chunk);
        if (chunk.last) return;
        if (chunk.data.empty())
            throw DataError(
                fmt::format("{}: the coordinator gives nothing at byte {} of {}", name, offset, chunk.size));
    }
}

void fetch_file(ServiceClient& client, const std::string& job_id, const std::filesystem::path& folder,
                const ResultFile& wanted, const TransferProgress& progress) {
    const std::filesystem::path path = folder / wanted.name;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error)
        throw UnavailableError(fmt::format("{}: cannot be made: {}", path.parent_path().string(), error.message()));
    AtomicFile file(path);
    Hasher hasher;
    std::int64_t moved = 0;
    read_result(client, job_id, wanted.name, [&](const idl::ResultChunk& chunk) {
        file.write(bytes_of(chunk.data));
        hasher.update(chunk.data);
        moved += static_cast<std::int64_t>(chunk.data.size());
        progress(wanted.name, moved, wanted.bytes);
    });
    if (moved != wanted.bytes || hasher.hex() != wanted.xxh3) {
        throw DataError(
            fmt::format("{}: expected {} bytes with hash {}, as the manifest says, found {} with {}; fetch the "
                        "results again",
                        wanted.name, wanted.bytes, wanted.xxh3, moved, hasher.hex()));
    }
    file.commit();
}

}  // namespace

std::string upload_file(ServiceClient& client, const std::filesystem::path& path, const TransferProgress& progress) {
    const MappedFile file = MappedFile::open(path, EmptyFile::kAllow);
    const idl::Upload upload = client.get(&idl::FenwickClient::beginUpload, path.filename().string(), file.size());
    for (std::int64_t offset = 0; offset < file.size();) {
        file.check_not_cut();
        const std::int64_t size = std::min(kChunkBytes, file.size() - offset);
        const std::string data(reinterpret_cast<const char*>(file.bytes().data()) + offset,
                               static_cast<std::size_t>(size));
        const auto crc =
            static_cast<std::int64_t>(crc32_z(0, reinterpret_cast<const unsigned char*>(data.data()), data.size()));
        (void)client.get(&idl::FenwickClient::putChunk, upload.id, offset, data, crc);
        offset += size;
        progress(path.filename().string(), offset, file.size());
    }
    (void)client.get(&idl::FenwickClient::commitUpload, upload.id);
    return upload.id;
}

ResultsReport fetch_results(ServiceClient& client, const std::string& job_id, const std::filesystem::path& folder,
                            bool losses, const TransferProgress& progress) {
    std::string manifest;
    read_result(client, job_id, kManifest, [&](const idl::ResultChunk& chunk) {
        if (chunk.size > kManifestLimit) {
            throw DataError(
                fmt::format("{}: expected at most {} bytes, found {}", kManifest, kManifestLimit, chunk.size));
        }
        manifest += chunk.data;
    });
    const std::vector<ResultFile> files = files_of(manifest);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw UnavailableError(fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
    ResultsReport report;
    for (const ResultFile& file : files) {
        if (!losses && file.name.rfind("nll/", 0) == 0) continue;
        ++report.files;
        report.bytes += file.bytes;
        if (is_there(folder / file.name, file)) {
            ++report.kept;
        } else {
            fetch_file(client, job_id, folder, file, progress);
        }
    }
    write_file_atomically(folder / kManifest, manifest);
    return report;
}

}  // namespace fenwick
