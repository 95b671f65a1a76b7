// Checkpoints of training: any world reads what any world wrote, old ones go, other models are refused.
#include <catch2/catch.hpp>

#include "core/errors.h"
#include "tests/core/temporary_folder.h"
#include "tests/worker/training/training_in_memory.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;
using testing::get;
using testing::message_of;
using testing::names_in;
using testing::put;
using testing::require_same;
using testing::TemporaryFolder;
using testing::Training;

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

}  // namespace fenwick
