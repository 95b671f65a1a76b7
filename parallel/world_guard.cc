#include "parallel/world_guard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/errors.h"
#include "parallel/collectives.h"

namespace fenwick {
namespace {

/// What travels to rank 0.
struct IdentityRecord {
    std::int64_t rank = 0;
    std::int64_t size = 0;
    std::int64_t pid = 0;
    std::array<char, 256> host{};
};

IdentityRecord own_record(const Communicator& comm) {
    IdentityRecord record{comm.rank(), comm.size(), getpid(), {}};
    if (gethostname(record.host.data(), record.host.size() - 1) != 0) {
        throw UnavailableError(fmt::format("gethostname: {}", std::strerror(errno)));
    }
    return record;
}

std::optional<int> task_count(const EnvironmentReader& read, const std::string& name) {
    const std::optional<std::string> text = read(name);
    if (!text) return std::nullopt;
    int count = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), count);
    if (error != std::errc() || end != text->data() + text->size() || count < 1) {
        throw UnavailableError(
            fmt::format("environment variable {}: expected a number of tasks, found '{}'", name, *text));
    }
    return count;
}

/// The launcher's variable and value that says how many processes it started, most trusted first.
std::optional<std::pair<std::string, int>> launched_tasks(const EnvironmentReader& read) {
    // sbatch runs its script once, whatever --ntasks says; only a step has as many tasks.
    const bool batch_script = read("ENVIRONMENT") == "BATCH" && !read("SLURM_STEP_ID");
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
        if (batch_script && std::string_view(name).starts_with("SLURM_")) continue;
        if (const std::optional<int> count = task_count(read, name)) return std::pair(std::string(name), *count);
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
}

void check_launcher(int processes, const EnvironmentReader& read) {
    const auto launched = launched_tasks(read);
    if (!launched || launched->second == processes) return;
    const auto& [name, count] = *launched;
    const std::string rank = read("SLURM_PROCID").value_or(read("OMPI_COMM_WORLD_RANK").value_or("unknown"));
    throw UnavailableError(fmt::format(
        "the launcher started {} processes ({}={}, this one is task {}), but this process sees a world of {}: the "
        "launcher and the MPI library do not know each other. Start with mpirun, or with srun --mpi=pmix; for one "
        "process inside a larger allocation, unset {} or use srun --ntasks=1",
        count, name, count, rank, processes, name));
}

void check_identities(const std::vector<RankIdentity>& identities) {
    std::set<std::pair<std::string, long>> processes;
    std::map<int, const RankIdentity*> ranks;
    for (std::size_t place = 0; place < identities.size(); ++place) {
        const RankIdentity& each = identities[place];
        if (each.size != static_cast<int>(identities.size())) {
            throw UnavailableError(fmt::format("process {} on {} says that it is rank {} of {}, in a world of {}",
                                               each.pid, each.host, each.rank, each.size, identities.size()));
        }
        const auto [other, is_new] = ranks.emplace(each.rank, &each);
        if (!is_new) {
            throw UnavailableError(fmt::format("process {} on {} and process {} on {} both say that they are rank {}",
                                               other->second->pid, other->second->host, each.pid, each.host,
                                               each.rank));
        }
        if (each.rank != static_cast<int>(place)) {
            throw UnavailableError(fmt::format("process {} on {}: expected rank {}, found rank {}", each.pid, each.host,
                                               place, each.rank));
        }
        if (!processes.emplace(each.host, each.pid).second) {
            throw UnavailableError(
                fmt::format("process {} on {} takes part twice, as rank {} too", each.pid, each.host, each.rank));
        }
    }
}

void guard_world(Communicator& comm, const EnvironmentReader& read) {
    const bool processes = comm.name() == "mpi";
    check_launcher(processes ? comm.size() : 1, read);
    if (!processes) return;

    const IdentityRecord own = own_record(comm);
    std::vector<IdentityRecord> records(comm.rank() == 0 ? static_cast<std::size_t>(comm.size()) : 0);
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(comm.size()), sizeof(IdentityRecord));
    gather_to_root(comm, std::as_bytes(std::span(&own, 1)), sizes, std::as_writable_bytes(std::span(records)));

    std::array<char, 512> verdict{};  // empty: all is well
    if (comm.rank() == 0) {
        std::vector<RankIdentity> identities;
        identities.reserve(records.size());
        for (const IdentityRecord& each : records) {
            identities.push_back({static_cast<int>(each.rank), static_cast<int>(each.size), each.host.data(),
                                  static_cast<long>(each.pid)});
        }
        try {
            check_identities(identities);
        } catch (const UnavailableError& error) {
            const std::string text = error.what();
            std::copy_n(text.begin(), std::min(text.size(), verdict.size() - 1), verdict.begin());
        }
    }
    broadcast(comm, std::as_writable_bytes(std::span(verdict)));
    if (verdict.front() != '\0') throw UnavailableError(verdict.data());
}

}  // namespace fenwick
