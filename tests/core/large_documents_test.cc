// Files past 4 GiB and very long rows (CASES E4, F3). The files are sparse: they take no room on the disk.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/documents.h"
#include "core/errors.h"
#include "core/jsonl.h"
#include "temporary_folder.h"
#include "token_test.h"

using Catch::Matchers::Contains;
using namespace fenwick;
using namespace fenwick::testing;
using Ids = std::vector<std::int32_t>;

namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

struct Patch {
    std::int64_t offset;
    std::string bytes;
};

/// Makes a file of `size` zero bytes with a few others; false when the file system would store the zeros.
bool make_sparse(const std::filesystem::path& path, std::int64_t size, const std::vector<Patch>& patches) {
    put(path, "");
    std::error_code error;
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(size), error);
    if (error) {
        WARN("skipped: the temporary folder takes no file of " << size << " bytes: " << error.message());
        return false;
    }
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    for (const auto& patch : patches) {
        file.seekp(patch.offset);
        file.write(patch.bytes.data(), static_cast<std::streamsize>(patch.bytes.size()));
    }
    file.close();
    REQUIRE(file.good());
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    REQUIRE(status.st_size == size);
    if (static_cast<std::int64_t>(status.st_blocks) * 512 < size / 2) return true;
    WARN("skipped: the temporary folder's file system has no sparse files");
    return false;
}

DocumentOptions options_for(const Tokenizer& tokenizer, std::int64_t vocab_size, bool check_ids) {
    return {&tokenizer, vocab_size, false, -1, {}, check_ids};
}

}  // namespace

TEST_CASE("Large documents: a text of 5 GiB and 3 bytes is counted and read at its end") {
    const TemporaryFolder folder;
    if (!make_sparse(folder / "big.txt", 5 * kGiB + 3, {{5 * kGiB, "xyz"}})) return;
    const auto tokenizer = make_byte_tokenizer();
    reset_peak_memory();
    const std::int64_t before = peak_memory();
    const std::vector<std::filesystem::path> inputs = {folder / "big.txt"};
    const auto reader = open_document(list_documents(inputs).at(0), options_for(*tokenizer, 256, true));
    CHECK(reader->size() == 5'368'709'123);
    CHECK(reader->text_bytes() == 5'368'709'123);
    CHECK(read_range(*reader, 5'368'709'120, 3) == Ids{120, 121, 122});
    CHECK(read_range(*reader, 4'294'967'295, 2) == Ids{0, 0});
    // Nothing is scanned: the pages around two ranges.
    CHECK(peak_memory() - before < std::int64_t{16} << 20);
}

TEST_CASE("Large documents: token 1200000000 of a u32 file lies at byte 4800000000") {
    const TemporaryFolder folder;
    const std::string id("\x39\x30\x00\x00", 4);
    if (!make_sparse(folder / "big.u32.bin", 4 * 1'300'000'000LL, {{4'800'000'000, id}})) return;
    const auto tokenizer = make_byte_tokenizer();
    reset_peak_memory();
    const std::int64_t before = peak_memory();
    const std::vector<std::filesystem::path> inputs = {folder / "big.u32.bin"};
    const auto reader = open_document(list_documents(inputs).at(0), options_for(*tokenizer, 50'000, false));
    CHECK(reader->size() == 1'300'000'000);
    CHECK(read_range(*reader, 1'199'999'999, 3) == Ids{0, 12'345, 0});
    CHECK(peak_memory() - before < std::int64_t{16} << 20);
}

TEST_CASE("Large documents: checking the ids of a file takes bounded memory") {
    const TemporaryFolder folder;
    if (!make_sparse(folder / "big.u16.bin", kGiB / 4, {{kGiB / 4 - 2, "\x07"}})) return;
    const auto tokenizer = make_byte_tokenizer();
    reset_peak_memory();
    const std::int64_t before = peak_memory();
    const std::vector<std::filesystem::path> inputs = {folder / "big.u16.bin"};
    CHECK_THAT(message_of<DataError>(
                   [&] { (void)open_document(list_documents(inputs).at(0), options_for(*tokenizer, 7, true)); }),
               Contains("token 134217727 is 7,"));
    CHECK(peak_memory() - before < std::int64_t{64} << 20);
}

TEST_CASE("Large documents: long rows between short ones") {
    const TemporaryFolder folder;
    // 65,537: past the buffer that readers of lines often have. 100 MB: a long document in one row.
    for (const std::size_t length : {std::size_t{65'537}, std::size_t{100'000'000}}) {
        put(folder / "rows.jsonl", "{\"custom_id\":\"a\",\"text\":\"1\"}\n{\"custom_id\":\"b\",\"text\":\"" +
                                       std::string(length, 'a') + "\"}\n{\"custom_id\":\"c\",\"text\":\"3\"}\n");
        const auto tokenizer = make_byte_tokenizer();
        const std::vector<std::filesystem::path> inputs = {folder / "rows.jsonl"};
        const auto documents = list_documents(inputs);
        REQUIRE(documents.size() == 3);
        for (const auto& document : documents) CHECK(document.error.empty());
        const auto reader = open_document(documents[1], options_for(*tokenizer, 256, true));
        CHECK(reader->size() == static_cast<std::int64_t>(length));
        CHECK(read_range(*reader, reader->size() - 2, 2) == Ids{97, 97});
        CHECK(open_document(documents[2], options_for(*tokenizer, 256, true))->size() == 1);
    }
}

TEST_CASE("Large documents: a row over the limit is an error and the next row is read") {
    const TemporaryFolder folder;
    // One byte over the limit after the first line, then a good row; then 4 GiB without a newline.
    const std::string first = "{\"custom_id\":\"a\",\"text\":\"1\"}\n";
    const std::string last = "\n{\"custom_id\":\"c\",\"text\":\"3\"}\n";
    const auto begin = std::ssize(first);
    const std::int64_t third = begin + kMaxJsonlLineBytes + 1;
    const std::int64_t fourth = third + std::ssize(last);
    if (!make_sparse(folder / "rows.jsonl", fourth + 4 * kGiB, {{0, first}, {third, last}})) return;
    reset_peak_memory();
    const std::int64_t before = peak_memory();
    const std::vector<std::filesystem::path> inputs = {folder / "rows.jsonl"};
    const auto documents = list_documents(inputs);
    REQUIRE(documents.size() == 4);
    CHECK(documents[0].error.empty());
    CHECK_THAT(documents[1].error, Contains("rows.jsonl line 2: 268435457 bytes") && Contains("268435456"));
    CHECK(documents[2].custom_id == "c");
    CHECK(documents[2].error.empty());
    CHECK_THAT(documents[3].error, Contains("line 4: 4294967296 bytes") && Contains("268435456"));
    CHECK(peak_memory() - before < std::int64_t{128} << 20);
}
