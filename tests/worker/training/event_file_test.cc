// Event files read back by the formats' own rules, and metrics rows over a resume.
#include "worker/training/event_file.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <stdexcept>
#include <vector>

#include "tests/core/temporary_folder.h"

namespace fenwick {
namespace {

using testing::get;
using testing::put;
using testing::TemporaryFolder;

// Bit by bit from the polynomial's definition; the writer uses a library's table.
std::uint32_t crc32c(std::string_view bytes) {
    std::uint32_t crc = 0xffffffffU;
    for (const char byte : bytes) {
        crc ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
    }
    return ~crc;
}
std::uint32_t masked(std::uint32_t crc) {
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

template <class T>
T take(std::string_view& from) {
    T value{};
    std::memcpy(&value, from.data(), sizeof(T));
    from.remove_prefix(sizeof(T));
    return value;
}

/// The records of a TFRecord file; throws where one is cut or its checksums are wrong.
std::vector<std::string> read_records(const std::filesystem::path& path) {
    const std::string file = get(path);
    std::string_view rest = file;
    std::vector<std::string> records;
    while (!rest.empty()) {
        if (rest.size() < 12) throw std::runtime_error("cut");
        const std::string_view length_bytes = rest.substr(0, 8);
        const auto length = take<std::uint64_t>(rest);
        if (take<std::uint32_t>(rest) != masked(crc32c(length_bytes))) throw std::runtime_error("crc of a length");
        if (rest.size() < length + 4) throw std::runtime_error("cut");
        records.emplace_back(rest.substr(0, length));
        rest.remove_prefix(length);
        if (take<std::uint32_t>(rest) != masked(crc32c(records.back()))) throw std::runtime_error("crc of data");
    }
    return records;
}

std::uint64_t take_varint(std::string_view& from) {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        const auto byte = take<std::uint8_t>(from);
        value |= std::uint64_t{byte & 0x7fU} << shift;
        if (byte < 0x80) return value;
    }
}

struct Field {
    std::uint64_t number = 0;
    std::uint64_t varint = 0;
    double fixed64 = 0;
    float fixed32 = 0;
    std::string bytes;
};

std::vector<Field> read_message(std::string_view message) {
    std::vector<Field> fields;
    while (!message.empty()) {
        const std::uint64_t key = take_varint(message);
        Field& field = fields.emplace_back();
        field.number = key >> 3;
        switch (key & 7U) {
            case 0:
                field.varint = take_varint(message);
                break;
            case 1:
                field.fixed64 = take<double>(message);
                break;
            case 2: {
                const std::uint64_t size = take_varint(message);
                field.bytes = message.substr(0, size);
                message.remove_prefix(size);
                break;
            }
            case 5:
                field.fixed32 = take<float>(message);
                break;
            default:
                throw std::runtime_error("wire type");
        }
    }
    return fields;
}

}  // namespace

TEST_CASE("event files hold framed scalars") {
    // RFC 3720, appendix B.4: 32 bytes of zeros, and of 0 to 31.
    CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aaU);
    std::string ascending;
    for (char c = 0; c < 32; ++c) ascending += c;
    CHECK(crc32c(ascending) == 0x46dd794eU);

    const TemporaryFolder folder;
    const std::int64_t steps[] = {0, 1, 127, 128, 300, std::int64_t{1} << 40};
    EventFile file(folder / "events");
    for (const std::int64_t step : steps) {
        file.append(step, std::array<Scalar, 2>{{{"train/loss", 1.5 + static_cast<double>(step)},
                                                 {std::string(200, 'x'), std::numeric_limits<double>::quiet_NaN()}}});
    }
    CHECK(file.path().filename().string().starts_with("events.out.tfevents."));
    const std::vector<std::string> records = read_records(file.path());
    REQUIRE(records.size() == 1 + std::size(steps));
    const auto version = read_message(records[0]);
    REQUIRE(version.size() == 3);
    CHECK(version[0].number == 1);
    CHECK(version[0].fixed64 > 1.6e9);
    CHECK(version[2].number == 3);
    CHECK(version[2].bytes == "brain.Event:2");
    for (std::size_t i = 0; i < std::size(steps); ++i) {
        const auto event = read_message(records[i + 1]);
        REQUIRE(event.size() == 3);
        CHECK(event[1].number == 2);
        CHECK(event[1].varint == static_cast<std::uint64_t>(steps[i]));
        CHECK(event[2].number == 5);
        const auto values = read_message(event[2].bytes);
        REQUIRE(values.size() == 2);
        const auto loss = read_message(values[0].bytes);
        CHECK(loss[0].bytes == "train/loss");
        CHECK(loss[1].number == 2);
        CHECK(loss[1].fixed32 == static_cast<float>(1.5 + static_cast<double>(steps[i])));
        const auto other = read_message(values[1].bytes);
        CHECK(other[0].bytes == std::string(200, 'x'));
        CHECK(std::isnan(other[1].fixed32));
    }
    // A run that resumes has a file of its own, which says from where on it counts.
    const EventFile second(folder / "events", 128);
    CHECK(second.path() != file.path());
    const auto start = read_message(read_records(second.path()).at(1));
    CHECK(start[1].varint == 128);
    CHECK(start[2].number == 7);
    CHECK(read_message(start[2].bytes).at(0).varint == 1);
}

TEST_CASE("metrics rows go on after the step of the checkpoint") {
    const TemporaryFolder folder;
    const std::filesystem::path path = folder / "metrics.jsonl";
    const auto row = [](std::int64_t step) { return nlohmann::ordered_json{{"step", step}, {"loss", 0.5}}; };
    {
        MetricsFile file(path);
        for (std::int64_t step = 1; step <= 5; ++step) file.append(row(step));
        file.append({{"step", 6}, {"loss", std::nan("")}});
    }
    const std::string whole = get(path);
    CHECK(whole.find("{\"step\":6,\"loss\":null}\n") != std::string::npos);
    const auto steps_of = [](const std::string& text) {
        std::vector<int> steps;
        std::size_t from = 0;
        for (std::size_t end; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
            steps.push_back(nlohmann::json::parse(text.substr(from, end - from)).at("step"));
        }
        return steps;
    };
    const auto resumed = [&](const std::string& before, std::int64_t last) {
        put(path, before);
        {
            MetricsFile file(path, last);
            file.append(row(last + 1));
        }
        return steps_of(get(path));
    };
    CHECK(resumed(whole, 3) == std::vector<int>{1, 2, 3, 4});
    CHECK(resumed(whole, 0) == std::vector<int>{1});
    CHECK(resumed(whole, 6) == std::vector<int>{1, 2, 3, 4, 5, 6, 7});
    CHECK(resumed(whole.substr(0, whole.size() - 5), 6) == std::vector<int>{1, 2, 3, 4, 5, 7});  // half a row
    CHECK(resumed("", 2) == std::vector<int>{3});
    CHECK(resumed(row(1).dump() + "\n{\"step\": tw\n" + row(3).dump() + "\n", 9) == std::vector<int>{1, 10});
    std::filesystem::remove(path);
    { MetricsFile file(path, 4); }
    CHECK(get(path).empty());
    put(path, whole);
    { MetricsFile fresh(path); }
    CHECK(get(path).empty());
}

}  // namespace fenwick
