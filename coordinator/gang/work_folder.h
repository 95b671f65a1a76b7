// Where a gang keeps states on their way to the coordinator.
#pragma once

#include "core/scratch_folder.h"

namespace fenwick {

/// A scratch folder whose name has this process's number: making one also removes those of processes of this host that
/// were killed. Throws UnavailableError.
[[nodiscard]] ScratchFolder make_work_folder();

}  // namespace fenwick
