#include "parallel/world_guard.h"

#include <catch2/catch.hpp>
#include <map>

#include "core/errors.h"
#include "parallel/mpi_communicator.h"
#include "parallel/self_communicator.h"

namespace fenwick {
namespace {

EnvironmentReader environment(std::map<std::string, std::string> values) {
    return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
        const auto found = values.find(name);
        if (found == values.end()) return std::nullopt;
        return found->second;
    };
}

}  // namespace

TEST_CASE("world guard: four processes that are each told rank 0 of 1 are refused") {
    // CASES J3 (i): a start without the PMI plug-in.
    SelfCommunicator self;
    for (const char* task : {"0", "1", "2", "3"}) {
        const EnvironmentReader read = environment({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", task}});
        REQUIRE_THROWS_AS(guard_world(self, read), UnavailableError);
        REQUIRE_THROWS_WITH(guard_world(self, read), Catch::Contains("started 4 processes") &&
                                                         Catch::Contains("SLURM_NTASKS=4") &&
                                                         Catch::Contains("a world of 1"));
    }
}

TEST_CASE("world guard: what the launcher says must agree with the world") {
    REQUIRE_NOTHROW(check_launcher(1, environment({})));
    REQUIRE_NOTHROW(check_launcher(4, environment({{"SLURM_NTASKS", "4"}})));
    REQUIRE_NOTHROW(check_launcher(1, environment({{"SLURM_NTASKS", "1"}})));
    // The script of sbatch is one process; srun inside it starts as many as it says.
    REQUIRE_NOTHROW(check_launcher(1, environment({{"ENVIRONMENT", "BATCH"}, {"SLURM_NTASKS", "4"}})));
    REQUIRE_THROWS_AS(
        check_launcher(1, environment({{"ENVIRONMENT", "BATCH"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}})),
        UnavailableError);
    // A step of one task inside a larger allocation, and mpirun inside one, are what they say.
    REQUIRE_NOTHROW(check_launcher(1, environment({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "1"}})));
    REQUIRE_NOTHROW(check_launcher(2, environment({{"SLURM_NTASKS", "4"}, {"OMPI_COMM_WORLD_SIZE", "2"}})));
    REQUIRE_THROWS_WITH(check_launcher(1, environment({{"OMPI_COMM_WORLD_SIZE", "3"}})),
                        Catch::Contains("OMPI_COMM_WORLD_SIZE=3"));
    REQUIRE_THROWS_WITH(check_launcher(1, environment({{"SLURM_NTASKS", "many"}})), Catch::Contains("'many'"));
}

TEST_CASE("world guard: ranks must be different processes with their own numbers") {
    REQUIRE_NOTHROW(check_identities({{0, 2, "a", 10}, {1, 2, "a", 11}}));
    REQUIRE_NOTHROW(check_identities({{0, 2, "a", 10}, {1, 2, "b", 10}}));
    // CASES J3 (iii): two ranks with the same number.
    REQUIRE_THROWS_WITH(check_identities({{0, 2, "a", 10}, {0, 2, "b", 11}}),
                        Catch::Contains("10 on a") && Catch::Contains("11 on b") && Catch::Contains("rank 0"));
    REQUIRE_THROWS_AS(check_identities({{0, 1, "a", 10}, {1, 2, "a", 11}}), UnavailableError);
    REQUIRE_THROWS_AS(check_identities({{1, 2, "a", 10}, {0, 2, "a", 11}}), UnavailableError);
    REQUIRE_THROWS_AS(check_identities({{0, 2, "a", 10}, {1, 2, "a", 10}}), UnavailableError);
}

TEST_CASE("a plain start is not a start under MPI") {
    REQUIRE_FALSE(launched_under_mpi(environment({})));
    REQUIRE_FALSE(launched_under_mpi(environment({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}})));
    REQUIRE(launched_under_mpi(environment({{"OMPI_COMM_WORLD_SIZE", "1"}})));
    REQUIRE(launched_under_mpi(environment({{"PMIX_RANK", "0"}, {"SLURM_PROCID", "0"}})));
    REQUIRE(launched_under_mpi(environment({{"PMI_RANK", "2"}})));
}

}  // namespace fenwick
