#include "core/npy.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "core/errors.h"
#include "temporary_folder.h"

using Catch::Matchers::Contains;
using namespace fenwick;
using fenwick::testing::bytes_at;
using fenwick::testing::get;
using fenwick::testing::message_of;
using fenwick::testing::put;
using fenwick::testing::TemporaryFolder;

namespace {

/// A .npy file of version `major` with the given dictionary and data bytes.
std::string npy(const std::string& dictionary, std::size_t data_bytes, int major = 1) {
    std::string file = "\x93NUMPY";
    file += static_cast<char>(major);
    file += '\0';
    for (std::size_t i = 0; i < (major == 1 ? 2U : 4U); ++i) {
        file += static_cast<char>(i < sizeof(std::size_t) ? dictionary.size() >> (8 * i) : 0);
    }
    return file + dictionary + std::string(data_bytes, '\0');
}

std::string dictionary(const std::string& descr, const std::string& shape) {
    return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }   \n";
}

NpyHeader header_of(const TemporaryFolder& folder, const std::string& content) {
    put(folder / "a.npy", content);
    const MappedFile file = MappedFile::open(folder / "a.npy");
    return read_npy_header(file, file.path());
}

std::string failure(const TemporaryFolder& folder, const std::string& content) {
    return message_of<DataError>([&] { (void)header_of(folder, content); });
}

}  // namespace

TEST_CASE("npy headers of every integer type and version are read") {
    const TemporaryFolder folder;
    for (const int major : {1, 2, 3}) {
        for (const char order : {'<', '>', '=', '|'}) {
            for (const int size : {1, 2, 4, 8}) {
                if (order == '|' && size != 1) continue;
                for (const char kind : {'i', 'u'}) {
                    const std::string text = dictionary(std::string{order, kind} + std::to_string(size), "(3,)");
                    const NpyHeader header = header_of(folder, npy(text, 3 * static_cast<std::size_t>(size), major));
                    CHECK(header.element_bytes == size);
                    CHECK(header.is_signed == (kind == 'i'));
                    CHECK(header.big_endian == (order == '>' && size > 1));
                    CHECK(header.count == 3);
                    CHECK(header.data_offset == static_cast<std::int64_t>(text.size()) + (major == 1 ? 10 : 12));
                }
            }
        }
    }
}

TEST_CASE("npy shapes of one dimension or one row are read in any spelling") {
    const TemporaryFolder folder;
    CHECK(header_of(folder, npy(dictionary("<u2", "(1, 5)"), 10)).count == 5);
    CHECK(header_of(folder, npy(dictionary("<u2", "(5L,)"), 10)).count == 5);
    CHECK(header_of(folder, npy(dictionary("<u2", "(0,)"), 0)).count == 0);
    CHECK(header_of(folder, npy(R"({"shape":(2,),"fortran_order":True,"descr":"<i8"})", 16)).count == 2);
}

TEST_CASE("npy files that are damaged or of another kind are refused by name") {
    const TemporaryFolder folder;
    const std::string good = npy(dictionary("<i4", "(3,)"), 12);
    CHECK_THAT(failure(folder, good.substr(0, good.size() - 1)), Contains("a.npy") && Contains("11 bytes"));
    CHECK_THAT(failure(folder, good + "x"), Contains("13 bytes"));
    CHECK_THAT(failure(folder, good.substr(0, 40)), Contains("cut short"));
    CHECK_THAT(failure(folder, good.substr(0, 7)), Contains("no .npy file"));
    CHECK_THAT(failure(folder, "PK\x03\x04 zipped"), Contains("no .npy file"));
    CHECK_THAT(failure(folder, npy(dictionary("<i4", "(3,)"), 12, 4)), Contains("version 4.0"));
    CHECK_THAT(failure(folder, npy(dictionary("<f4", "(3,)"), 12)), Contains("\"<f4\"") && Contains("integer"));
    CHECK_THAT(failure(folder, npy(dictionary("|b1", "(3,)"), 3)), Contains("\"|b1\""));
    CHECK_THAT(failure(folder, npy(dictionary("|i4", "(3,)"), 12)), Contains("\"|i4\""));
    CHECK_THAT(failure(folder, npy(dictionary("<i16", "(3,)"), 48)), Contains("\"<i16\""));
    CHECK_THAT(failure(folder, npy(dictionary("<i4", "(2, 3)"), 24)), Contains("[2, 3]"));
    CHECK_THAT(failure(folder, npy(dictionary("<i4", "()"), 4)), Contains("[]"));
    CHECK_THAT(failure(folder, npy(dictionary("<i4", "(-3,)"), 12)), Contains("dimension"));
    CHECK_THAT(failure(folder, npy(dictionary("<i4", "(99999999999999999999,)"), 12)), Contains("dimension"));
    // 2^62 elements of 4 bytes are 0 modulo 2^64.
    CHECK_THAT(failure(folder, npy(dictionary("<i4", "(4611686018427387904,)"), 0)), Contains("0 bytes of data"));
    CHECK_THAT(failure(folder, npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (3,), }", 12)),
               Contains("structured"));
    CHECK_THAT(failure(folder, npy("{'descr': '<i4', 'shape': (3,), }", 12)), Contains("needs descr"));
    CHECK_THAT(failure(folder, npy("{'descr': '<i4', 'descr': '<i4', 'shape': (3,), }", 12)), Contains("twice"));
    CHECK_THAT(failure(folder, npy("{'descr': '<i4", 12)), Contains("without end"));
    std::string huge = "\x93NUMPY\x02";
    huge += std::string(1, '\0') + "\xff\xff\xff\xff";
    CHECK_THAT(failure(folder, huge), Contains("4294967295 bytes"));
}

TEST_CASE("a result stream is a numpy file of float32") {
    const TemporaryFolder folder;
    const std::vector<float> values = {1.5F, -0.0F, std::numeric_limits<float>::infinity()};
    NpyStream stream = NpyStream::create(folder / "r.npy");
    stream.append(values);
    const std::string open = get(folder / "r.npy");
    CHECK_THAT(open.substr(0, 128), Contains("'shape': (0,)"));  // not finished: nobody takes it for a whole one
    stream.finish();
    const std::string content = get(folder / "r.npy");
    REQUIRE(content.size() == 128 + 12);
    CHECK(content.substr(0, 10) == std::string("\x93NUMPY\x01\0\x76\0", 10));
    CHECK(content.substr(10, 58) == "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), } ");
    CHECK(content[127] == '\n');
    CHECK(content.substr(128) == bytes_at(values.data(), 12));
}

TEST_CASE("a result stream that is cut and continued gives the same file") {
    // 5,000 values: more than one block of 4,096, cut at places that are and are not multiples of it.
    std::vector<float> values(5000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.25F;
    const std::span<const float> all(values);
    const TemporaryFolder folder;
    {
        NpyStream stream = NpyStream::create(folder / "whole.npy");
        stream.append(all);
        stream.finish();
    }
    const std::string whole = get(folder / "whole.npy");
    for (const std::size_t keep : {0U, 1U, 4095U, 4096U, 4500U}) {
        {
            NpyStream stream = NpyStream::create(folder / "cut.npy");
            stream.append(all.first(4500));
            stream.sync();
        }
        put(folder / "cut.npy", get(folder / "cut.npy") + "\x01\x02");  // half a value, as a kill leaves it
        NpyStream stream = NpyStream::reopen(folder / "cut.npy", static_cast<std::int64_t>(keep));
        CHECK(stream.values() == static_cast<std::int64_t>(keep));
        stream.append(all.subspan(keep, 100));
        stream.append(all.subspan(keep + 100));
        stream.finish();
        CHECK(get(folder / "cut.npy") == whole);
    }
    // Also after finish.
    NpyStream stream = NpyStream::reopen(folder / "whole.npy", 10);
    stream.append(all.subspan(10));
    stream.finish();
    CHECK(get(folder / "whole.npy") == whole);
}

TEST_CASE("a result stream is not continued where it cannot be") {
    const TemporaryFolder folder;
    CHECK_THROWS_AS(NpyStream::reopen(folder / "absent.npy", 0), DataError);
    put(folder / "short.npy", "\x93NUMPY");
    CHECK_THROWS_AS(NpyStream::reopen(folder / "short.npy", 0), DataError);
    put(folder / "ids.npy", npy(dictionary("<i4", "(100,)"), 400));
    CHECK_THAT(message_of<DataError>([&] { (void)NpyStream::reopen(folder / "ids.npy", 0); }), Contains("header"));
    CHECK(get(folder / "ids.npy") == npy(dictionary("<i4", "(100,)"), 400));
    { NpyStream::create(folder / "r.npy").append(std::vector<float>(3)); }
    CHECK_THAT(message_of<DataError>([&] { (void)NpyStream::reopen(folder / "r.npy", 4); }), Contains("holds 3"));
}
