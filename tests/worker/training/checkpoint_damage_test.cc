// A checkpoint of training that is damaged is named, and so is the newest one that is whole.
#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>

#include "core/errors.h"
#include "core/hash.h"
#include "tests/core/temporary_folder.h"
#include "tests/worker/training/training_in_memory.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;
using testing::get;
using testing::message_of;
using testing::put;
using testing::TemporaryFolder;
using testing::Training;

void flip_byte(const fs::path& file, std::size_t from_end) {
    std::string bytes = get(file);
    char& byte = bytes.at(bytes.size() - from_end);
    byte = static_cast<char>(byte ^ 1);
    put(file, bytes);
}

}  // namespace

TEST_CASE("a damaged checkpoint is named, with the older one that is whole") {
    const TemporaryFolder folder;
    (void)Training(10).save(folder.path(), 2);
    (void)Training(20).save(folder.path(), 2);
    const fs::path good = Training(30).save(folder.path(), 2);
    const std::string shard = "shard-00001-of-00002.safetensors";
    const std::string manifest = get(good / "manifest.json");
    const auto edited = [&](const std::string& from, const std::string& to) {
        std::string text = manifest;
        const std::size_t at = text.find(from);
        if (at == std::string::npos) throw std::runtime_error("no " + from);
        return text.replace(at, from.size(), to);
    };
    // A change whose hash is right: what an editor, not a disk, does.
    const auto rehashed = [&](const auto& change) {
        auto json = nlohmann::json::parse(manifest);
        json.erase("hash");
        change(json);
        Hasher hasher;
        hasher.update(json.dump());
        json["hash"] = hasher.hex();
        return json.dump();
    };
    struct Damage {
        std::string name;
        std::function<void(const fs::path&)> make;
        std::string message;
    };
    const auto rewrite = [](const std::string& text) {
        return [text](const fs::path& path) { put(path / "manifest.json", text); };
    };
    using Json = nlohmann::json;
    const Damage damages[] = {
        {"shard absent", [&](const fs::path& path) { fs::remove(path / shard); }, shard},
        {"shard cut", [&](const fs::path& path) { fs::resize_file(path / shard, 100); }, "expected"},
        {"bit of a value", [&](const fs::path& path) { flip_byte(path / shard, 3); }, "expected the hash"},
        {"no manifest", [](const fs::path& path) { fs::remove(path / "manifest.json"); }, "manifest.json"},
        {"half a manifest", rewrite(manifest.substr(0, manifest.size() / 2)), "manifest.json"},
        {"no config", [](const fs::path& path) { fs::remove(path / "config.json"); }, "config.json"},
        {"other config", [](const fs::path& path) { put(path / "config.json", "{}"); }, "field \"model_config_hash\""},
        {"digit of the state", rewrite(edited("30000", "30001")), "field \"hash\""},
        {"not an object", rewrite("[]"), "manifest.json"},
        {"format", rewrite(edited("fenwick-training-1", "fenwick-training-9")), "field \"format\""},
        {"step", rewrite(rehashed([](Json& json) { json["step"] = -1; })), "field \"step\""},
        {"step", rewrite(rehashed([](Json& json) { json["step"] = "30"; })), "field \"step\""},
        {"elements", rewrite(rehashed([](Json& json) { json["elements"] = 38; })), "field \"elements\""},
        {"table", rewrite(rehashed([](Json& json) { json["table"][1]["offset"] = 20; })), "table[1]: field \"offset\""},
        {"table", rewrite(rehashed([](Json& json) { json["table"][1]["name"] = "a.weight"; })), "field \"name\""},
        {"table", rewrite(rehashed([](Json& json) {
             json["table"][4]["shape"] = {1L << 62, 1L << 62};
         })),
         "field \"shape\""},
        {"table", rewrite(rehashed([](Json& json) {
             json["table"][0]["shape"] = {-3, -7};
         })),
         "field \"shape\""},
        {"shards", rewrite(rehashed([](Json& json) { json["shards"].erase(1); })), "field \"shards\""},
        {"shards", rewrite(rehashed([](Json& json) { json["shards"][0]["size"] = 99; })), "field \"size\""},
        {"shards", rewrite(rehashed([](Json& json) { json["shards"][1]["first"] = 18; })), "field \"first\""},
        {"shards", rewrite(rehashed([](Json& json) { json["shards"][1]["file"] = "../../x"; })), "field \"file\""},
        {"state", rewrite(rehashed([](Json& json) { json["state"] = 3; })), "field \"state\""},
    };
    for (const Damage& damage : damages) {
        INFO(damage.name);
        fs::copy(good, folder / "kept");
        damage.make(good);
        const auto use = [&] { latest_checkpoint(folder.path()).verify(); };
        const std::string message = message_of<DataError>(use);
        INFO(message);
        CHECK(message.find(good.string()) != std::string::npos);
        CHECK(message.find(damage.message) != std::string::npos);
        CHECK(message.find((folder / "step-00000020").string() + " before it is whole") != std::string::npos);
        fs::remove_all(good);
        fs::rename(folder / "kept", good);
    }
    // The damage lies in the second shard: the first is still readable, the second is not.
    flip_byte(good / shard, 3);
    const TrainingCheckpoint damaged = TrainingCheckpoint::open(good);
    std::vector<float> values(19);
    CHECK_NOTHROW(damaged.read(0, values));
    CHECK_THROWS_AS(damaged.read(18, values), DataError);
    // Nor is the one before whole: the message passes it over.
    flip_byte(folder / "step-00000020" / shard, 3);
    const std::string message = message_of<DataError>([&] { damaged.verify(); });
    CHECK(message.find("step-00000010 before it is whole") != std::string::npos);
    flip_byte(folder / "step-00000010" / shard, 3);
    CHECK(message_of<DataError>([&] { damaged.verify(); }).find("no older checkpoint") != std::string::npos);
    CHECK(message_of<DataError>([&] { (void)latest_checkpoint(folder / "absent"); }).find("no checkpoint") !=
          std::string::npos);
}

}  // namespace fenwick
