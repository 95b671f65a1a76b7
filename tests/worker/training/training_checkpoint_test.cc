// Checkpoints of training: any world reads what any world wrote; what is damaged is named; what is killed leaves the
// last good one.
#include "worker/training/training_checkpoint.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "core/errors.h"
#include "core/hash.h"
#include "parallel/collectives.h"
#include "parallel/self_communicator.h"
#include "parallel/thread_world.h"
#include "tests/core/file_size_limit.h"
#include "tests/core/temporary_folder.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;
using testing::get;
using testing::message_of;
using testing::put;
using testing::TemporaryFolder;

// What training has in memory, whole; ranks write slices of it.
struct Training {
    explicit Training(std::int64_t step, std::vector<ParameterPlace> table = {{"a.weight", {3, 7}, 0},
                                                                              {"a.bias", {7}, 21},
                                                                              {"b.A_log", {1}, 28},
                                                                              {"empty", {0, 4}, 29},
                                                                              {"b.weight", {2, 1, 4}, 29}}) {
        head.step = step;
        head.table = std::move(table);
        head.model_config = R"({"model_type": "mamba2", "limit": Infinity})";
        head.state = {{"tokens", 1000 * step}, {"loss", 1.0 / 3.0}, {"data", {{"epoch", 1}, {"item", step}}}};
        std::mt19937_64 random(static_cast<std::uint64_t>(step));
        std::normal_distribution<float> draw;
        for (auto& vector : vectors) {
            vector.resize(static_cast<std::size_t>(total_elements(head.table)));
            for (float& value : vector) value = draw(random);
        }
    }
    [[nodiscard]] std::int64_t total() const { return std::ssize(vectors[0]); }
    [[nodiscard]] CheckpointSlice slice(int world, int rank) const {
        const Slice own = slice_of(total(), world, rank);
        const auto part = [&](const std::vector<float>& all) {
            return std::span(all).subspan(static_cast<std::size_t>(own.first), static_cast<std::size_t>(own.size));
        };
        return {part(vectors[0]), part(vectors[1]), part(vectors[2])};
    }
    fs::path save(const fs::path& folder, int ranks = 1, int keep = 0) const {
        run_thread_ranks(ranks, [&](Communicator& world) {
            const fs::path path =
                write_training_checkpoint(world, folder, head, slice(world.size(), world.rank()), keep);
            if (path != folder / step_name(head.step)) throw InternalError("other path");
        });
        return folder / step_name(head.step);
    }

    CheckpointHead head;
    std::array<std::vector<float>, 3> vectors;
};

void require_same(const TrainingCheckpoint& found, const Training& expected, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
        const Slice slice = slice_of(expected.total(), ranks, rank);
        std::array<std::vector<float>, 3> read;
        for (auto& vector : read) vector.resize(static_cast<std::size_t>(slice.size));
        found.read(slice.first, read[0], read[1], read[2]);
        for (std::size_t i = 0; i < read.size(); ++i) {
            const auto from = expected.vectors[i].begin() + slice.first;
            REQUIRE(std::equal(read[i].begin(), read[i].end(), from));
        }
    }
}

std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

/// Hands everything on; `before` is called once, before the first message.
class Interfering final : public Communicator {
public:
    Interfering(Communicator& world, std::function<void()> before) : world_(world), before_(std::move(before)) {}
    [[nodiscard]] int rank() const override { return world_.rank(); }
    [[nodiscard]] int size() const override { return world_.size(); }
    [[nodiscard]] std::string name() const override { return world_.name(); }
    void exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) override {
        if (before_) std::exchange(before_, nullptr)();
        world_.exchange(sends, recvs);
    }
    void abort(const std::string& reason, ExitCode code) noexcept override { world_.abort(reason, code); }

private:
    Communicator& world_;
    std::function<void()> before_;
};

void flip_byte(const fs::path& file, std::size_t from_end) {
    std::string bytes = get(file);
    char& byte = bytes.at(bytes.size() - from_end);
    byte = static_cast<char>(byte ^ 1);
    put(file, bytes);
}

}  // namespace

TEST_CASE("slices cover the flat vector in rank order") {
    for (const std::int64_t total : {0, 1, 7, 8, 9, 37}) {
        for (const int world : {1, 2, 3, 8, 40}) {
            std::int64_t next = 0;
            for (int rank = 0; rank < world; ++rank) {
                const Slice slice = slice_of(total, world, rank);
                CHECK(slice.first == next);
                CHECK(slice.size >= 0);
                next += slice.size;
            }
            CHECK(next == total);
        }
    }
}

// CASES H4: one save of 4 ranks on 1, 2, 3 and 8; more ranks than elements leave some with nothing.
TEST_CASE("any world reads what any world wrote") {
    const TemporaryFolder folder;
    const Training training(12);
    for (const int wrote : {1, 2, 3, 4, 8, 40}) {
        const fs::path path = training.save(folder / std::to_string(wrote), wrote);
        const TrainingCheckpoint found = TrainingCheckpoint::open(path);
        CHECK(found.head().step == 12);
        CHECK(found.head().table == training.head.table);
        CHECK(found.head().model_config == training.head.model_config);
        CHECK(found.head().state == training.head.state);
        CHECK(found.world() == wrote);
        CHECK(found.total() == 37);
        CHECK_NOTHROW(found.verify());
        for (const int ranks : {1, 2, 3, 8, 40}) {
            INFO(wrote << " wrote, " << ranks << " read");
            require_same(found, training, ranks);
        }
        std::vector<float> values(5);
        found.read(30, values);
        CHECK(std::equal(values.begin(), values.end(), training.vectors[0].begin() + 30));
        CHECK_THROWS_AS(found.read(33, values), InternalError);
        CHECK(names_in(folder / std::to_string(wrote)) == std::vector<std::string>{"step-00000012"});
    }
}

TEST_CASE("resharding changes only the shards") {
    const TemporaryFolder folder;
    const Training training(5);
    const TrainingCheckpoint from = TrainingCheckpoint::open(training.save(folder / "3", 3));
    for (const int ranks : {1, 4}) {
        const fs::path path = reshard_checkpoint(from, ranks, folder / "out" / std::to_string(ranks));
        const TrainingCheckpoint found = TrainingCheckpoint::open(path);
        CHECK(found.world() == ranks);
        CHECK(found.head().state == training.head.state);
        require_same(found, training, 2);
        // The bytes of a world that wrote it itself.
        const fs::path direct = training.save(folder / "direct" / std::to_string(ranks), ranks);
        for (const std::string& name : names_in(direct)) CHECK(get(path / name) == get(direct / name));
        CHECK_THROWS_AS(reshard_checkpoint(from, ranks, folder / "out" / std::to_string(ranks)), UsageError);
    }
    CHECK_THROWS_AS(reshard_checkpoint(from, 0, folder / "none"), UsageError);
}

TEST_CASE("several are kept, the oldest go after the new one is there") {
    const TemporaryFolder folder;
    for (const std::int64_t step : {10, 20, 30, 40}) (void)Training(step).save(folder.path(), 2, 3);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step-00000020", "step-00000030", "step-00000040"});
    // Gone back to 20 and on to 25: later ones stay until their turn, the new one is never deleted.
    (void)Training(25).save(folder.path(), 1, 1);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step-00000025"});
    // The same step again replaces.
    Training again(25);
    again.vectors[0][3] = 77;
    (void)again.save(folder.path(), 2, 2);
    require_same(latest_checkpoint(folder.path()), again, 1);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step-00000025"});
    CHECK(parse_step_name("step-123456789") == 123456789);
    for (const char* name :
         {"step-1", "step-", "step-0000001x", "step--0000001", ".step-00000001.partial", "step-00000001 "}) {
        CHECK_FALSE(parse_step_name(name).has_value());
    }
}

TEST_CASE("what killed writers leave is cleaned, and a replacement is finished") {
    const TemporaryFolder folder;
    const Training old(10);
    (void)old.save(folder.path());
    fs::copy(folder / "step-00000010", folder / ".step-00000020.partial");
    fs::copy(folder / "step-00000010", folder / ".step-00000005.deleted");
    fs::rename(folder / "step-00000010", folder / ".step-00000010.replaced");
    put(folder / "metrics.jsonl", "not mine");
    CHECK(list_checkpoints(folder.path()).empty());
    CHECK(clean_checkpoints(folder.path()) == 3);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"metrics.jsonl", "step-00000010"});
    require_same(latest_checkpoint(folder.path()), old, 1);
    fs::copy(folder / "step-00000010", folder / ".step-00000010.replaced");
    CHECK(clean_checkpoints(folder.path()) == 1);
    CHECK(clean_checkpoints(folder.path()) == 0);
    CHECK(clean_checkpoints(folder / "absent") == 0);
}

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

TEST_CASE("a checkpoint is refused for another model") {
    const TemporaryFolder folder;
    const Training training(1);
    const TrainingCheckpoint found = TrainingCheckpoint::open(training.save(folder.path()));
    CHECK_NOTHROW(found.check_model(R"({"limit": Infinity,   "model_type": "mamba2"})", training.head.table));
    CHECK(message_of<DataError>([&] {
              found.check_model(R"({"limit": Infinity, "model_type": "gated_deltanet"})", training.head.table);
          }).find("config.json differs at \"/model_type\"") != std::string::npos);
    auto table = training.head.table;
    table[2].name = "b.D";
    CHECK(message_of<DataError>([&] {
              found.check_model(training.head.model_config, table);
          }).find("parameter 2: expected b.D [1] at 28, found b.A_log [1] at 28") != std::string::npos);
    table = training.head.table;
    table.pop_back();
    CHECK(message_of<DataError>([&] {
              found.check_model(training.head.model_config, table);
          }).find("parameter 4: expected no more, found b.weight [2, 1, 4] at 29") != std::string::npos);
}

TEST_CASE("when one rank cannot write, all say so and the old checkpoint stays") {
    const TemporaryFolder folder;
    const Training old(1);
    (void)old.save(folder.path(), 3, 1);
    const Training next(2);
    std::vector<std::string> messages(3);
    const auto save_next = [&](Communicator& world) {
        try {
            (void)write_training_checkpoint(world, folder.path(), next.head, next.slice(3, world.rank()), 1);
        } catch (const UnavailableError& error) {
            messages[static_cast<std::size_t>(world.rank())] = error.what();
        }
    };
    const auto require_old = [&] {
        INFO(messages[0]);
        CHECK(messages[1] == messages[0]);
        CHECK(messages[2] == messages[0]);
        CHECK(names_in(folder.path()) == std::vector<std::string>{"step-00000001"});
        require_same(latest_checkpoint(folder.path()), old, 2);
    };
    // Rank 1 alone: a folder that is not empty lies where its shard is to be.
    run_thread_ranks(3, [&](Communicator& world) {
        if (world.rank() != 0) return save_next(world);
        Interfering interfering(
            world, [&] { fs::create_directories(partial_path(folder.path(), 2) / shard_name(1, 3) / "in the way"); });
        save_next(interfering);
    });
    CHECK(messages[0].find("rank 1 of 3: ") != std::string::npos);
    CHECK(messages[0].find(shard_name(1, 3)) != std::string::npos);
    require_old();
    {
        const testing::FileSizeLimit full_disk(200);  // of all ranks: threads of one process
        run_thread_ranks(3, save_next);
    }
    CHECK(messages[0].find("rank 0 of 3: ") != std::string::npos);
    CHECK(messages[0].find("make room") != std::string::npos);
    require_old();
}

// CASES H4. The child saves one step after the other until it is killed; what is found then must be whole, and at most
// one save old: the child says which steps it has committed.
TEST_CASE("kill -9 at any moment leaves the last good checkpoint") {
    std::mt19937 random(20261130);
    std::vector<ParameterPlace> table = {{"w", {40, 1000}, 0}};
    int killed_inside = 0;
    for (int trial = 0; trial < 20; ++trial) {
        const TemporaryFolder folder;
        std::array<int, 2> pipe{};
        REQUIRE(::pipe(pipe.data()) == 0);
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            try {
                SelfCommunicator self;
                for (std::int64_t step = 1; step < 100000; ++step) {
                    const Training training(step, table);
                    (void)write_training_checkpoint(self, folder.path(), training.head, training.slice(1, 0), 2);
                    if (::write(pipe[1], &step, sizeof(step)) != sizeof(step)) break;
                }
            } catch (...) {
            }
            ::_exit(1);
        }
        ::close(pipe[1]);
        std::int64_t committed = 0;
        REQUIRE(::read(pipe[0], &committed, sizeof(committed)) == sizeof(committed));
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200000));
        ::kill(child, SIGKILL);
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        for (std::int64_t step = 0; ::read(pipe[0], &step, sizeof(step)) == sizeof(step);) committed = step;
        ::close(pipe[0]);
        killed_inside += clean_checkpoints(folder.path()) > 0 ? 1 : 0;
        const TrainingCheckpoint found = latest_checkpoint(folder.path());
        CHECK(found.head().step >= committed);
        CHECK(found.head().step <= committed + 1);
        require_same(found, Training(found.head().step, table), 1);
        for (const fs::path& path : list_checkpoints(folder.path()))
            CHECK_NOTHROW(TrainingCheckpoint::open(path).verify());
        for (const std::string& name : names_in(folder.path())) CHECK(parse_step_name(name).has_value());
    }
    CHECK(killed_inside > 0);  // else the moments were badly chosen
}

}  // namespace fenwick
