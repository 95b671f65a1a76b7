// Requests to stop: SIGINT, SIGTERM and SIGUSR2 (what a batch system sends ahead of a time limit).
#pragma once

namespace fenwick {

/// From now on those signals only note the wish to stop, which `stop_requested` tells. A second SIGINT ends the process
/// at once. Also makes a write beyond a file-size limit fail instead of ending the process. Throws InternalError.
void catch_stop_signals();

/// The signal's name ("SIGTERM"), or nullptr when nobody asked.
[[nodiscard]] const char* stop_requested() noexcept;

}  // namespace fenwick
