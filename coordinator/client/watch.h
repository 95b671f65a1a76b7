// Following a job until it is over.
#pragma once

#include <string>

#include "coordinator/client/service_client.h"

namespace fenwick {

/// Waits for the job by waitJob and tells stderr how it goes: a line that is rewritten on a terminal, a line every ten
/// seconds elsewhere, nothing when `silent`. Returns the job as it ended. SIGINT ends the program as usual: the job
/// goes on.
[[nodiscard]] idl::Job watch_job(ServiceClient& client, const std::string& job_id, bool silent);

}  // namespace fenwick
