#include "core/checkpoint.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "core/errors.h"
#include "core/safetensors_writer.h"
#include "temporary_folder.h"

using Catch::Matchers::Contains;
using namespace fenwick;
using fenwick::testing::message_of;
using fenwick::testing::put;
using fenwick::testing::TemporaryFolder;
using Shape = std::vector<std::int64_t>;

namespace {

constexpr const char* kShard1 = "model-00001-of-00002.safetensors";
constexpr const char* kShard2 = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::vector<float> ramp(std::size_t size, float first) {
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = first + static_cast<float>(i);
    return values;
}

const std::vector<float> embedding_values = ramp(12, 0);
const std::vector<float> norm_values = ramp(4, 100);
// 3,000 floats: cutting 4,097 bytes stays within this tensor and takes away more than a page.
const std::vector<float> head_values = ramp(3000, 200);

void write_index(const TemporaryFolder& folder, const std::string& embedding, const std::string& norm,
                 const std::string& more = "") {
    put(folder / kIndex, R"({"metadata":{"total_size":1},"weight_map":{"embedding":")" + embedding + R"(","norm":")" +
                             norm + R"(","head":")" + std::string(kShard2) + "\"" + more + "}}");
}

void write_shard1(const TemporaryFolder& folder) {
    SafetensorsWriter writer;
    writer.add("embedding", {3, 4}, embedding_values);
    writer.write(folder / kShard1);
}

void write_shard2(const TemporaryFolder& folder, bool with_norm = true, bool with_extra = false) {
    SafetensorsWriter writer;
    if (with_norm) writer.add("norm", {4}, norm_values);
    if (with_extra) writer.add("mtp.fc.weight", {4}, norm_values);
    writer.add("head", {3000}, head_values);
    writer.write(folder / kShard2);
}

/// C2's two-shard checkpoint.
void write_sharded(const TemporaryFolder& folder) {
    write_shard1(folder);
    write_shard2(folder);
    write_index(folder, kShard1, kShard2);
}

void write_single(const TemporaryFolder& folder, float offset = 0) {
    const auto embedding = ramp(12, offset);
    SafetensorsWriter writer;
    writer.add("head", {3000}, head_values);
    writer.add("norm", {4}, norm_values);
    writer.add("embedding", {3, 4}, embedding);
    writer.write(folder / "model.safetensors");
}

std::string open_failure(const TemporaryFolder& folder) {
    return message_of<DataError>([&] { (void)Checkpoint::open(folder.path()); });
}

bool holds(const Buffer<float>& buffer, const std::vector<float>& values) {
    return std::equal(buffer.begin(), buffer.end(), values.begin(), values.end());
}

}  // namespace

TEST_CASE("a checkpoint loads alike from one file and from shards") {
    const TemporaryFolder single;
    const TemporaryFolder sharded;
    write_single(single);
    write_sharded(sharded);
    std::string hashes[2];
    int at = 0;
    for (const TemporaryFolder* folder : {&single, &sharded}) {
        Checkpoint checkpoint = Checkpoint::open(folder->path());
        CHECK(checkpoint.has("norm"));
        CHECK_FALSE(checkpoint.has("nor"));
        CHECK(checkpoint.names() == std::vector<std::string>{"embedding", "head", "norm"});
        CHECK(checkpoint.info("embedding").shape == Shape{3, 4});
        CHECK(checkpoint.parameters() == 12 + 4 + 3000);
        CHECK(checkpoint.unused().size() == 3);
        CHECK(holds(checkpoint.load_f32("embedding", Shape{3, 4}), embedding_values));
        CHECK(holds(checkpoint.load_f32("norm", Shape{4}), norm_values));
        CHECK(checkpoint.unused() == std::vector<std::string>{"head"});
        checkpoint.ignore("head");
        checkpoint.ignore("absent");
        CHECK(checkpoint.unused().empty());
        hashes[at++] = checkpoint.hash();
    }
    CHECK(hashes[0] == hashes[1]);
    CHECK(hashes[0].size() == 32);
    write_single(single, 0.5F);
    CHECK(Checkpoint::open(single.path()).hash() != hashes[0]);
}

TEST_CASE("a folder without weights says what was looked for") {
    const TemporaryFolder folder;
    CHECK_THAT(open_failure(folder), Contains(kIndex) && Contains("model.safetensors"));
    put(folder / "file", "x");
    CHECK_THAT(message_of<DataError>([&] { (void)Checkpoint::open(folder / "file"); }), Contains("no folder"));
    CHECK_THAT(message_of<DataError>([&] { (void)Checkpoint::open(folder / "absent"); }), Contains("no folder"));
    std::filesystem::create_directory(folder / "model.safetensors");
    CHECK_THAT(open_failure(folder), Contains("is a directory"));
}

TEST_CASE("a shard that is absent is named with a tensor") {
    const TemporaryFolder folder;
    write_sharded(folder);
    std::filesystem::remove(folder / kShard2);
    CHECK_THAT(open_failure(folder), Contains(kShard2) && Contains("absent") && Contains("\"head\""));
}

TEST_CASE("an index whose entries are swapped is refused with shard and tensor") {
    const TemporaryFolder folder;
    write_sharded(folder);
    write_index(folder, kShard2, kShard1);
    CHECK_THAT(open_failure(folder), Contains(kShard1) && Contains("\"norm\""));
}

TEST_CASE("a shard that was cut is refused with its tensor") {
    for (const std::uintmax_t cut : {1U, 4097U}) {
        const TemporaryFolder folder;
        write_sharded(folder);
        const auto path = folder / kShard2;
        std::filesystem::resize_file(path, std::filesystem::file_size(path) - cut);
        CHECK_THAT(open_failure(folder), Contains(kShard2) && Contains("cut short") &&
                                             (cut == 1 ? Contains("\"norm\"") : Contains("\"head\"")));
    }
}

TEST_CASE("a shard that is cut after opening is an error and no signal") {
    const TemporaryFolder folder;
    write_sharded(folder);
    Checkpoint checkpoint = Checkpoint::open(folder.path());
    const auto path = folder / kShard2;
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 8192);
    CHECK_THAT(message_of<DataError>([&] { (void)checkpoint.load_f32("head", Shape{3000}); }), Contains(kShard2));
    CHECK_THROWS_AS(checkpoint.hash(), DataError);
}

TEST_CASE("the index wins over a stray single file") {
    const TemporaryFolder folder;
    write_sharded(folder);
    const std::string before = Checkpoint::open(folder.path()).hash();
    write_single(folder, 1000);
    Checkpoint checkpoint = Checkpoint::open(folder.path());
    CHECK(checkpoint.hash() == before);
    CHECK(holds(checkpoint.load_f32("embedding", Shape{3, 4}), embedding_values));
    put(folder / "model.safetensors", "rubbish");
    CHECK(Checkpoint::open(folder.path()).hash() == before);
}

TEST_CASE("a tensor that is missing is named") {
    const TemporaryFolder folder;
    write_sharded(folder);
    write_shard2(folder, false);  // the index still has it
    CHECK_THAT(open_failure(folder), Contains(kShard2) && Contains("\"norm\""));
    put(folder / kIndex, R"({"weight_map":{"embedding":")" + std::string(kShard1) + R"("}})");
    Checkpoint checkpoint = Checkpoint::open(folder.path());
    CHECK_THAT(message_of<DataError>([&] { (void)checkpoint.load_f32("norm", Shape{4}); }), Contains("\"norm\""));
    CHECK_THROWS_AS(checkpoint.info("norm"), DataError);
}

TEST_CASE("an unknown tensor more is listed as unused with and without an index entry") {
    for (const bool in_index : {true, false}) {
        const TemporaryFolder folder;
        write_sharded(folder);
        write_shard2(folder, true, true);
        if (in_index) write_index(folder, kShard1, kShard2, R"(,"mtp.fc.weight":")" + std::string(kShard2) + "\"");
        Checkpoint checkpoint = Checkpoint::open(folder.path());
        CHECK(holds(checkpoint.load_f32("embedding", Shape{3, 4}), embedding_values));
        CHECK(holds(checkpoint.load_f32("norm", Shape{4}), norm_values));
        CHECK(holds(checkpoint.load_f32("head", Shape{3000}), head_values));
        CHECK(checkpoint.unused() == std::vector<std::string>{"mtp.fc.weight"});
    }
}

TEST_CASE("an index that is damaged or reaches out of the folder is refused") {
    const TemporaryFolder folder;
    write_sharded(folder);
    for (const std::string text :
         {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
          R"({"weight_map":{"a":"../x.safetensors"}})", R"({"weight_map":{"a":"/etc/passwd"}})",
          R"({"weight_map":{"a":".."}})", R"({"weight_map":{"a":"x","a":"y"}})"}) {
        put(folder / kIndex, text);
        CHECK_THAT(open_failure(folder), Contains(kIndex));
    }
}

TEST_CASE("a tensor of another shape than the configuration is refused with both shapes") {
    const TemporaryFolder folder;  // C6 (i)
    const std::vector<float> values(8192);
    SafetensorsWriter writer;
    writer.add("layers.0.in_proj.weight", {8, 1024}, values);
    writer.write(folder / "model.safetensors");
    Checkpoint checkpoint = Checkpoint::open(folder.path());
    CHECK_THAT(message_of<DataError>([&] {
                   (void)checkpoint.load_f32("layers.0.in_proj.weight", Shape{8, 4096});
               }),
               Contains("model.safetensors") && Contains("layers.0.in_proj.weight") &&
                   Contains("expected shape [8, 4096]") && Contains("found [8, 1024]"));
    CHECK_THROWS_AS(checkpoint.load_f32("layers.0.in_proj.weight", Shape{8192}), DataError);
    CHECK(checkpoint.unused().size() == 1);
}

TEST_CASE("a weight in F8_E4M3 is refused with dtype and tensor") {
    const TemporaryFolder folder;  // C4: 130 x 70 with the scales of 128 x 128 blocks
    const std::vector<std::byte> bytes(9100, std::byte{0x38});
    const std::vector<float> scales(2, 0.0013F);
    SafetensorsWriter writer;
    writer.add("proj.weight", Dtype::kF8E4M3, {130, 70}, bytes);
    writer.add("proj.weight_scale_inv", {2, 1}, scales);
    writer.write(folder / "model.safetensors");
    Checkpoint checkpoint = Checkpoint::open(folder.path());
    CHECK_THAT(message_of<DataError>([&] {
                   (void)checkpoint.load_f32("proj.weight", Shape{130, 70});
               }),
               Contains("F8_E4M3") && Contains("\"proj.weight\"") && Contains("model.safetensors"));
}

TEST_CASE("F32 decays in a bf16 checkpoint stay exact and may be minus infinity") {
    const TemporaryFolder folder;  // C5: A_log = ln 15.9 must not become 2.765625
    const float a_log = std::log(15.9F);
    const std::vector<float> decays = {a_log, -std::numeric_limits<float>::infinity(), -100.0F};
    const std::vector<std::uint16_t> weights = {0x3F80, 0x4031, 0xFF80, 0x0001, 0x8000};
    SafetensorsWriter writer;
    writer.add("A_log", {3}, decays);
    writer.add("weight", Dtype::kBF16, {5}, std::as_bytes(std::span(weights)));
    writer.write(folder / "model.safetensors");
    Checkpoint checkpoint = Checkpoint::open(folder.path());
    const Buffer<float> loaded = checkpoint.load_f32("A_log", Shape{3});
    CHECK(holds(loaded, decays));
    CHECK(std::abs(loaded[0] - 2.766319F) < 1e-6F);
    const Buffer<float> bf16 = checkpoint.load_f32("weight", Shape{5});
    CHECK(holds(bf16, {1.0F, 2.765625F, -std::numeric_limits<float>::infinity(), 0x1p-133F, -0.0F}));
}
