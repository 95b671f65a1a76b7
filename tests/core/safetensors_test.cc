#include "core/safetensors.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/safetensors_writer.h"
#include "temporary_folder.h"

using Catch::Matchers::Contains;
using namespace fenwick;
using fenwick::testing::bytes_at;
using fenwick::testing::get;
using fenwick::testing::message_of;
using fenwick::testing::put;
using fenwick::testing::TemporaryFolder;

namespace {

std::string length_bytes(std::uint64_t length) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    return text;
}

std::string file_of(const std::string& header, std::size_t data_bytes) {
    return length_bytes(header.size()) + header + std::string(data_bytes, '\1');
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, std::int64_t begin,
                   std::int64_t end) {
    return '"' + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
}

/// A JSON object of these members.
std::string object(const std::vector<std::string>& members) {
    std::string text = "{";
    for (const std::string& member : members) {
        if (text.size() > 1) text += ',';
        text += member;
    }
    return text += '}';
}

std::int64_t peak_kib() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/// Opens `content` as a file; it must be refused with the file's name within C1's bounds: one second and 64 MB.
std::string refusal(const TemporaryFolder& folder, const std::string& content) {
    const auto path = folder / "bad.safetensors";
    put(path, content);
    const std::int64_t before = peak_kib();
    const auto start = std::chrono::steady_clock::now();
    std::string message = message_of<DataError>([&] { (void)SafetensorsFile::open(path); });
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
    CHECK(peak_kib() - before < 65'536);
    CHECK_THAT(message, Contains("bad.safetensors"));
    CHECK(message.size() < 1000);
    return message;
}

}  // namespace

TEST_CASE("safetensors files with an impossible header length are refused") {
    const TemporaryFolder folder;
    CHECK_THAT(refusal(folder, ""), Contains("empty"));
    CHECK_THAT(refusal(folder, std::string(7, '\0')), Contains("too few"));
    CHECK_THAT(refusal(folder, std::string(8, '\xff') + "{}"), Contains("18446744073709551615"));
    CHECK_THAT(refusal(folder, std::string(7, '\xff') + "\x7f{}"), Contains("9223372036854775807"));
    CHECK_THAT(refusal(folder, length_bytes(10) + "{}"), Contains("only 2 bytes follow"));  // the length of the file
    CHECK_THAT(refusal(folder, length_bytes(132'095'296) + std::string(1016, ' ')), Contains("132095296"));
    CHECK_THAT(refusal(folder, length_bytes(0)), Contains("'{'"));
    CHECK_THAT(refusal(folder, length_bytes(3) + " {}"), Contains("'{'"));
}

TEST_CASE("a safetensors header above the limit of the format is refused though the file has it") {
    const TemporaryFolder folder;
    const auto path = folder / "big.safetensors";
    put(path, length_bytes(100'000'001) + "{}");
    std::filesystem::resize_file(path, 8 + 100'000'001);  // sparse
    CHECK_THAT(message_of<DataError>([&] { (void)SafetensorsFile::open(path); }), Contains("allows 100000000"));
}

TEST_CASE("safetensors ranges that do not tile the data are refused with the tensor") {
    const TemporaryFolder folder;
    const auto file = [](const std::string& a, const std::string& b, std::size_t bytes) {
        return file_of(object(b.empty() ? std::vector{a} : std::vector{a, b}), bytes);
    };
    const std::string a = tensor("a", "U8", "[100]", 0, 100);
    CHECK_THAT(refusal(folder, file(a, tensor("b", "U8", "[100]", 50, 150), 150)),
               Contains("\"b\"") && Contains("overlaps"));
    CHECK_THAT(refusal(folder, file(a, tensor("b", "U8", "[10]", 104, 114), 114)),
               Contains("\"b\"") && Contains("hole"));
    CHECK_THAT(refusal(folder, file(tensor("b", "U8", "[10]", 4, 14), "", 14)), Contains("\"b\"") && Contains("hole"));
    CHECK_THAT(refusal(folder, file(tensor("b", "U8", "[10]", 14, 4), "", 14)),
               Contains("\"b\"") && Contains("backwards"));
    CHECK_THAT(refusal(folder, file(a, "", 116)), Contains("16 bytes follow"));
    CHECK_THAT(refusal(folder, file(a, "", 99)), Contains("\"a\"") && Contains("cut short"));
    CHECK_THAT(refusal(folder, file(a, a, 100)), Contains("\"a\"") && Contains("twice"));
    CHECK_THAT(refusal(folder, file_of("{}", 16)), Contains("16 bytes follow"));
}

TEST_CASE("safetensors shapes that do not fit their range are refused with the tensor") {
    const TemporaryFolder folder;
    const auto one = [](const std::string& dtype, const std::string& shape, std::int64_t end, std::size_t bytes) {
        return file_of(object({tensor("w", dtype, shape, 0, end)}), bytes);
    };
    CHECK_THAT(refusal(folder, one("F32", "[3]", 8, 8)), Contains("\"w\"") && Contains("needs 12 bytes"));
    CHECK_THAT(refusal(folder, one("F32", "[8589934592,8589934592]", 0, 0)), Contains("more than 2^63"));
    CHECK_THAT(refusal(folder, one("F32", "[4611686018427387904]", 0, 0)), Contains("more than 2^63"));
    CHECK_THAT(refusal(folder, one("F32", "[18446744073709551615]", 4, 4)), Contains("63-bit"));
    CHECK_THAT(refusal(folder, one("F32", "[99999999999999999999999]", 4, 4)), Contains("63-bit"));
    CHECK_THAT(refusal(folder, one("F32", "[-1]", 4, 4)), Contains("negative"));
    CHECK_THAT(refusal(folder, one("F32", "[1.0]", 4, 4)), Contains("63-bit"));
    CHECK_THAT(refusal(folder, one("F32", "[[1]]", 4, 4)), Contains("no place"));
    CHECK_THAT(refusal(folder, one("F32", "1", 4, 4)), Contains("no place"));
    CHECK_THAT(refusal(folder, one("F33", "[1]", 4, 4)), Contains("\"F33\""));
}

TEST_CASE("safetensors headers that are no header of the format are refused") {
    const TemporaryFolder folder;
    const auto header = [&](const std::string& text) { return refusal(folder, file_of(text, 0)); };
    CHECK_THAT(header(R"({"a":)" + std::string(100000, '[') + std::string(100000, ']') + "}"), Contains("no place"));
    std::string objects;
    for (int i = 0; i < 100000; ++i) objects += R"({"shape":)";
    CHECK_THAT(header(objects), Contains("nested too deep"));
    CHECK_THAT(header(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0])"), Contains("no valid JSON"));
    CHECK_THAT(header(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}} x)"), Contains("no valid JSON"));
    CHECK_THAT(header(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0,0]}})"), Contains("more than two"));
    CHECK_THAT(header(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0]}})"), Contains("two numbers"));
    CHECK_THAT(header(R"({"a":{"dtype":"F32","shape":[0]}})"), Contains("needs dtype"));
    CHECK_THAT(header(R"({"a":{"dtype":"F32","dtype":"F16","shape":[0],"data_offsets":[0,0]}})"), Contains("twice"));
    CHECK_THAT(header(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":1}})"), Contains("unknown field"));
    CHECK_THAT(header(R"({"a":3})"), Contains("no place"));
    CHECK_THAT(header(R"({"a":null})"), Contains("no place"));
    CHECK_THAT(header(R"({"__metadata__":{"a":1}})"), Contains("__metadata__"));
    CHECK_THAT(header(R"({"__metadata__":{"a":{}}})"), Contains("__metadata__"));
    CHECK_THAT(header(R"({"__metadata__":{"a":"1","a":"2"}})"), Contains("twice"));
    CHECK_THAT(header("{\"" + std::string(5000, 'n') + "\":3}"), Contains("nnn\"..."));  // a long name is cut
}

TEST_CASE("safetensors headers padded around 100000 bytes load") {
    const TemporaryFolder folder;
    for (const std::size_t length : {99'994U, 100'000U, 100'001U}) {
        std::string header = object({tensor("w", "F32", "[2]", 0, 8)});
        header.resize(length, ' ');
        const float values[2] = {1.5F, -2.0F};
        std::string content = file_of(header, 8);
        std::memcpy(content.data() + content.size() - 8, values, 8);  // at an odd address for 100,001
        put(folder / "ok.safetensors", content);
        const SafetensorsFile file = SafetensorsFile::open(folder / "ok.safetensors");
        REQUIRE(file.tensors().size() == 1);
        CHECK(bytes_at(file.tensors()[0].data, 8) == bytes_at(values, 8));
    }
}

TEST_CASE("safetensors tensors are found whatever the order of the header") {
    const TemporaryFolder folder;
    const std::string header =
        object({tensor("z", "U8", "[2]", 0, 2), tensor("a", "BF16", "[1,2]", 2, 6), R"("__metadata__":{"format":"pt"})",
                tensor("empty", "F32", "[0,7]", 2, 2), tensor("scalar", "F64", "[]", 6, 14)});
    std::string content = file_of(header, 14);
    content[content.size() - 14] = '\x07';
    put(folder / "ok.safetensors", content);
    SafetensorsFile opened = SafetensorsFile::open(folder / "ok.safetensors");
    const SafetensorsFile file = std::move(opened);
    REQUIRE(file.tensors().size() == 4);
    CHECK(file.metadata().at("format") == "pt");
    CHECK(file.find("z")->data[0] == std::byte{7});
    CHECK(file.find("a")->shape == std::vector<std::int64_t>{1, 2});
    CHECK(file.find("a")->dtype == Dtype::kBF16);
    CHECK(file.find("empty")->bytes == 0);
    CHECK(file.find("scalar")->shape.empty());
    CHECK(file.find("scalar")->bytes == 8);
    CHECK(file.find("b") == nullptr);
    CHECK(file.find("zz") == nullptr);
}

TEST_CASE("what the safetensors writer writes is read back and does not depend on the order of calls") {
    const TemporaryFolder folder;
    const std::vector<float> floats = {1, 2, 3, 4, 5, 6};
    const std::vector<std::uint16_t> halves = {0x3F80, 0xFF80, 1};
    const std::vector<std::int64_t> longs = {-1};
    const auto add = [&](SafetensorsWriter& writer, int which) {
        if (which == 0) writer.add("w.\"f\u00e9\"", {2, 3}, floats);
        if (which == 1) writer.add("a.bf", Dtype::kBF16, {3}, std::as_bytes(std::span(halves)));
        if (which == 2) writer.add("step", Dtype::kI64, {}, std::as_bytes(std::span(longs)));
    };
    std::string first;
    for (const auto& order : std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
        SafetensorsWriter writer;
        for (const int which : order) add(writer, which);
        writer.set_metadata("format", "pt");
        writer.write(folder / "t.safetensors");
        const std::string content = get(folder / "t.safetensors");
        if (first.empty()) first = content;
        CHECK(content == first);
    }
    std::uint64_t header = 0;
    std::memcpy(&header, first.data(), 8);
    CHECK(header % 8 == 0);

    const SafetensorsFile file = SafetensorsFile::open(folder / "t.safetensors");
    CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
    CHECK(file.tensors().size() == 3);
    CHECK(bytes_at(file.find("w.\"f\u00e9\"")->data, 24) == bytes_at(floats.data(), 24));
    CHECK(bytes_at(file.find("a.bf")->data, 6) == bytes_at(halves.data(), 6));
    CHECK(bytes_at(file.find("step")->data, 8) == bytes_at(longs.data(), 8));
    for (const TensorInfo& info : file.tensors()) {
        CHECK(reinterpret_cast<std::uintptr_t>(info.data) % static_cast<std::size_t>(element_size(info.dtype)) == 0);
    }
    SafetensorsWriter none;
    none.write(folder / "none.safetensors");
    CHECK(SafetensorsFile::open(folder / "none.safetensors").tensors().empty());
}

TEST_CASE("the safetensors writer refuses what no file may hold") {
    const TemporaryFolder folder;
    const std::vector<float> floats(4);
    SafetensorsWriter writer;
    writer.add("w", {4}, floats);
    CHECK_THROWS_AS(writer.add("w", {4}, floats), InternalError);
    CHECK_THROWS_AS(writer.add("v", {5}, floats), InternalError);
    CHECK_THROWS_AS(writer.add("__metadata__", {4}, floats), InternalError);
    writer.add("\xff", {4}, floats);
    CHECK_THROWS_AS(writer.write(folder / "t.safetensors"), InternalError);
    CHECK(folder.entries() == 0);
}
