#include "worker/training/event_file.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <boost/crc.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <system_error>

#include "core/errors.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4), rotated and shifted as TFRecord has it, so that checksums of checksums
/// do not vanish.
std::uint32_t masked_crc(std::string_view bytes) {
    boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
    crc.process_bytes(bytes.data(), bytes.size());
    return std::rotr(static_cast<std::uint32_t>(crc.checksum()), 15) + 0xa282ead8U;
}

template <class T>
void put_raw(std::string& to, T value) {
    static_assert(std::endian::native == std::endian::little);
    std::array<char, sizeof(T)> raw{};
    std::memcpy(raw.data(), &value, sizeof(T));
    to.append(raw.data(), raw.size());
}

// The few pieces of protobuf's wire format (protobuf.dev/programming-guides/encoding) that an Event needs.
enum class Wire : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& to, std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
    to += static_cast<char>(value);
}
void put_key(std::string& to, std::uint64_t field, Wire wire) {
    put_varint(to, field << 3 | static_cast<std::uint64_t>(wire));
}
void put_bytes(std::string& to, std::uint64_t field, std::string_view bytes) {
    put_key(to, field, Wire::kBytes);
    put_varint(to, bytes.size());
    to += bytes;
}

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Event { double wall_time = 1; int64 step = 2; ... }
std::string begin_event(std::int64_t step) {
    std::string event;
    put_key(event, 1, Wire::kFixed64);
    put_raw(event, seconds_now());
    put_key(event, 2, Wire::kVarint);
    put_varint(event, static_cast<std::uint64_t>(step));
    return event;
}

AppendFile create_event_file(const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) throw UnavailableError(fmt::format("{}: cannot create: {}", folder.string(), error.message()));
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
    const auto path = [&](int more) {
        return folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<std::int64_t>(seconds_now()),
                                    host.data(), ::getpid(), more);
    };
    int more = 0;
    while (fs::exists(path(more))) ++more;
    return AppendFile::create(path(more));
}

/// The end of the last row that `last_step` keeps.
std::int64_t kept_bytes(const fs::path& path, std::int64_t last_step) {
    const MappedFile file = MappedFile::open(path, EmptyFile::kAllow);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    std::size_t kept = 0;
    while (kept < text.size()) {
        const std::size_t end = text.find('\n', kept);
        if (end == std::string_view::npos) break;
        const auto row = nlohmann::json::parse(text.substr(kept, end - kept), nullptr, false);
        if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) {
            spdlog::warn("{}: byte {}: expected a row with an integer \"step\"; it and what follows is cut off",
                         path.string(), kept);
            break;
        }
        if (row["step"].get<std::int64_t>() > last_step) break;
        kept = end + 1;
    }
    return static_cast<std::int64_t>(kept);
}

AppendFile open_metrics(const fs::path& path, std::optional<std::int64_t> last_step) {
    if (!last_step || !fs::exists(path)) return AppendFile::create(path);
    const std::int64_t kept = kept_bytes(path, *last_step);
    AppendFile file = AppendFile::open(path);
    file.truncate(kept);
    return file;
}

}  // namespace

EventFile::EventFile(const fs::path& folder, std::optional<std::int64_t> first_step)
    : file_(create_event_file(folder)) {
    std::string event = begin_event(0);
    put_bytes(event, 3, "brain.Event:2");  // Event.file_version
    write_record(event);
    if (!first_step) return;
    std::string start = begin_event(*first_step);
    std::string session;
    put_key(session, 1, Wire::kVarint);  // SessionLog.status
    put_varint(session, 1);              // START
    put_bytes(start, 7, session);        // Event.session_log
    write_record(start);
}

void EventFile::append(std::int64_t step, std::span<const Scalar> scalars) {
    std::string summary;
    for (const Scalar& scalar : scalars) {
        std::string value;
        put_bytes(value, 1, scalar.tag);  // Summary.Value.tag
        put_key(value, 2, Wire::kFixed32);
        put_raw(value, static_cast<float>(scalar.value));  // Summary.Value.simple_value
        put_bytes(summary, 1, value);                      // Summary.value
    }
    std::string event = begin_event(step);
    put_bytes(event, 5, summary);  // Event.summary
    write_record(event);
}

void EventFile::write_record(std::string_view data) {
    std::string record;
    put_raw(record, static_cast<std::uint64_t>(data.size()));
    put_raw(record, masked_crc(record));
    record += data;
    put_raw(record, masked_crc(data));
    file_.append(record);
}

MetricsFile::MetricsFile(const fs::path& path, std::optional<std::int64_t> last_step)
    : file_(open_metrics(path, last_step)) {}

void MetricsFile::append(const nlohmann::ordered_json& row) {
    file_.append(row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace fenwick
