// The real program as the ranks of an MPI world, and the processes behind the ranks.
#pragma once

#include <sys/types.h>

#include "tests/coordinator/support.h"

namespace fenwick::testing {

/// mpirun's arguments: `ranks` processes of the program with these arguments.
[[nodiscard]] Arguments launch(int ranks, const Arguments& arguments);
[[nodiscard]] Finished mpirun(int ranks, const Arguments& arguments);
/// The process of a rank of the world that `launcher` started, or -1.
[[nodiscard]] pid_t process_of_rank(pid_t launcher, int rank);
/// No process any more, or one that only waits for its parent to ask after it.
[[nodiscard]] bool is_gone(pid_t pid);

}  // namespace fenwick::testing
