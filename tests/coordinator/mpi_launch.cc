#include "tests/coordinator/mpi_launch.h"

#include <fstream>
#include <iterator>
#include <string>

namespace fenwick::testing {

Arguments launch(int ranks, const Arguments& arguments) {
    Arguments all = {"--allow-run-as-root", "--oversubscribe", "-np", std::to_string(ranks), FENWICK_PROGRAM};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
}

pid_t process_of_rank(pid_t launcher, int rank) {
    const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank) + std::string(1, '\0');
    const std::string children =
        "/proc/" + std::to_string(launcher) + "/task/" + std::to_string(launcher) + "/children";
    std::ifstream list(children);
    for (pid_t pid = 0; list >> pid;) {
        std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
        const std::string environment{std::istreambuf_iterator<char>(file), {}};
        if (environment.find(variable) != std::string::npos) return pid;
    }
    return -1;
}

bool is_gone(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    const std::size_t name_end = stat.rfind(')');
    return name_end == std::string::npos || stat.compare(name_end, 3, ") Z") == 0;
}

Finished mpirun(int ranks, const Arguments& arguments) {
    return Child(launch(ranks, arguments), std::nullopt, "mpirun").wait();
}

}  // namespace fenwick::testing
