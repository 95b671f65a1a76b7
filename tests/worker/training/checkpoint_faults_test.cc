// Faults while a checkpoint of training is written, a full disk and a killed process among them, leave the last good
// one.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "core/errors.h"
#include "parallel/self_communicator.h"
#include "tests/core/file_size_limit.h"
#include "tests/core/temporary_folder.h"
#include "tests/worker/training/training_in_memory.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;
using testing::names_in;
using testing::require_same;
using testing::TemporaryFolder;
using testing::Training;

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
}  // namespace

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
