#include "core/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <utility>

#include "core/errors.h"
#include "tests/core/file_size_limit.h"
#include "tests/core/temporary_folder.h"

using Catch::Matchers::Contains;
using namespace fenwick;
using fenwick::testing::FileSizeLimit;
using fenwick::testing::get;
using fenwick::testing::message_of;
using fenwick::testing::put;
using fenwick::testing::TemporaryFolder;

TEST_CASE("a mapped file shows the bytes of the file and survives a move") {
    const TemporaryFolder folder;
    put(folder / "a", "hello");
    MappedFile file = MappedFile::open(folder / "a");
    const std::byte* before = file.bytes().data();
    MappedFile moved = std::move(file);
    CHECK(moved.size() == 5);
    CHECK(moved.bytes().data() == before);
    CHECK(std::memcmp(moved.bytes().data(), "hello", 5) == 0);
    moved.advise(Access::kRandom);
    moved.advise(Access::kSequential);
    CHECK_NOTHROW(moved.check_not_cut());
}

TEST_CASE("mapping what is no file with content names the path and the reason") {
    const TemporaryFolder folder;
    const auto open = [](const std::filesystem::path& path) {
        return message_of<DataError>([&] { (void)MappedFile::open(path); });
    };
    CHECK_THAT(open(folder / "absent"), Contains("absent") && Contains("No such file"));
    CHECK_THAT(open(folder.path()), Contains(folder.path().string()) && Contains("is a directory"));
    put(folder / "empty", "");
    CHECK_THAT(open(folder / "empty"), Contains("empty: the file is empty"));
    CHECK_THAT(open((folder / "empty") / "below"), Contains("Not a directory"));
    CHECK_THAT(open("/dev/null"), Contains("no regular file"));
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    CHECK_THAT(open(folder / "pipe"), Contains("no regular file"));

    const MappedFile allowed = MappedFile::open(folder / "empty", EmptyFile::kAllow);
    CHECK(allowed.size() == 0);
    CHECK(allowed.bytes().empty());
}

TEST_CASE("a file that is cut while mapped is noticed") {
    const TemporaryFolder folder;
    put(folder / "a", std::string(10000, 'x'));
    const MappedFile file = MappedFile::open(folder / "a");
    std::filesystem::resize_file(folder / "a", 9999);
    CHECK_THAT(message_of<DataError>([&] { file.check_not_cut(); }), Contains("10000") && Contains("9999"));
}

TEST_CASE("a mapped file past 4 GiB has exact size and offsets") {
    // CASES.md E4: 5 GiB + 3, sparse; 32-bit offsets would wrap to 1,073,741,827.
    constexpr std::int64_t kSize = 5'368'709'123;
    const TemporaryFolder folder;
    put(folder / "big", "");
    std::filesystem::resize_file(folder / "big", kSize - 3);
    AppendFile tail = AppendFile::open(folder / "big");
    tail.append("xyz");
    const MappedFile file = MappedFile::open(folder / "big");
    REQUIRE(file.size() == kSize);
    CHECK(std::memcmp(file.bytes().data() + (kSize - 3), "xyz", 3) == 0);
}

TEST_CASE("an atomic write replaces the file and leaves nothing beside it") {
    const TemporaryFolder folder;
    write_file_atomically(folder / "a", "one");
    write_file_atomically(folder / "a", "two!");
    CHECK(get(folder / "a") == "two!");
    CHECK(folder.entries() == 1);
}

TEST_CASE("an atomic file's bytes can be replaced until it is committed") {
    const TemporaryFolder folder;
    AtomicFile file(folder / "a");
    file.write(bytes_of("headers and more"));
    file.overwrite(0, bytes_of("HEADERS"));
    file.write(bytes_of("!"));
    CHECK_THROWS_AS(file.overwrite(12, bytes_of("longer")), InternalError);
    CHECK_THROWS_AS(file.overwrite(-1, bytes_of("x")), InternalError);
    file.commit();
    CHECK(get(folder / "a") == "HEADERS and more!");
}

TEST_CASE("an atomic file that is not committed leaves the old content") {
    const TemporaryFolder folder;
    put(folder / "a", "old");
    {
        AtomicFile file(folder / "a");
        file.write(bytes_of("new"));
        CHECK(get(folder / "a") == "old");
        CHECK(folder.entries() == 2);
    }
    CHECK(get(folder / "a") == "old");
    CHECK(folder.entries() == 1);
}

TEST_CASE("an atomic write to a full disk keeps the old content and removes the temporary file") {
    const TemporaryFolder folder;
    put(folder / "a", "old");
    std::string message;
    {
        const FileSizeLimit limit(4096);
        message = message_of<UnavailableError>([&] { write_file_atomically(folder / "a", std::string(5000, 'x')); });
    }
    CHECK_THAT(message, Contains((folder / "a").string()) && Contains("File too large"));
    CHECK(get(folder / "a") == "old");
    CHECK(folder.entries() == 1);
}

TEST_CASE("an atomic write below a regular file or onto a folder is refused") {
    const TemporaryFolder folder;
    put(folder / "file", "x");
    CHECK_THAT(message_of<UnavailableError>([&] { write_file_atomically((folder / "file") / "a", "text"); }),
               Contains("Not a directory"));
    CHECK_THAT(message_of<UnavailableError>([&] { write_file_atomically((folder / "none") / "a", "text"); }),
               Contains("No such file or directory"));
    std::filesystem::create_directory(folder / "sub");
    CHECK_THAT(message_of<UnavailableError>([&] { write_file_atomically(folder / "sub", "text"); }),
               Contains("sub") && Contains("directory"));
    CHECK(folder.entries() == 2);
}

TEST_CASE("temporary files of killed writers can be removed") {
    const TemporaryFolder folder;
    put(folder / ".fenwick-123-0.tmp", "left over");
    put(folder / "result.tmp", "of the user");
    CHECK(remove_temporaries(folder.path()) == 1);
    CHECK(folder.entries() == 1);
    CHECK_THROWS_AS(remove_temporaries(folder / "absent"), UnavailableError);
}

TEST_CASE("an append file grows and is cut and continued") {
    const TemporaryFolder folder;
    {
        AppendFile file = AppendFile::create(folder / "log");
        file.append("one\n");
        file.append("two\n");
        file.sync();
        CHECK(file.size() == 8);
    }
    AppendFile file = AppendFile::open(folder / "log");
    CHECK(file.size() == 8);
    file.truncate(4);
    file.append("three\n");
    file.overwrite(0, bytes_of("ONE"));
    CHECK(get(folder / "log") == "ONE\nthree\n");
    std::string back(3, ' ');
    file.read(4, std::as_writable_bytes(std::span<char>(back)));
    CHECK(back == "thr");
    CHECK_THROWS_AS(file.read(8, std::as_writable_bytes(std::span<char>(back))), DataError);
    CHECK_THROWS_AS(file.truncate(11), InternalError);
    CHECK_THROWS_AS(file.overwrite(8, bytes_of("abc")), InternalError);
    CHECK_THROWS_AS(AppendFile::open(folder / "absent"), DataError);
    CHECK_THROWS_AS(AppendFile::create(folder.path()), UnavailableError);
}

TEST_CASE("a failed append leaves no half record") {
    const TemporaryFolder folder;
    AppendFile file = AppendFile::create(folder / "log");
    file.append(std::string(4000, 'a'));
    {
        const FileSizeLimit limit(4096);
        CHECK_THROWS_AS(file.append(std::string(200, 'b')), UnavailableError);
    }
    CHECK(file.size() == 4000);
    CHECK(get(folder / "log") == std::string(4000, 'a'));
    file.append("c");
    CHECK(get(folder / "log") == std::string(4000, 'a') + "c");
}

TEST_CASE("no space left on the device is said in these words") {
    AppendFile file = AppendFile::open("/dev/full");
    CHECK_THAT(message_of<UnavailableError>([&] { file.append("x"); }),
               Contains("/dev/full") && Contains("No space left on device") && Contains("make room"));
}

TEST_CASE("a text file is read up to its limit") {
    const TemporaryFolder folder;
    put(folder / "a", std::string("a\0b", 3));
    CHECK(read_text_file(folder / "a", 3) == std::string("a\0b", 3));
    CHECK_THAT(message_of<DataError>([&] { (void)read_text_file(folder / "a", 2); }), Contains("limit of 2"));
    CHECK_THROWS_AS(read_text_file(folder.path(), 10), DataError);
}
