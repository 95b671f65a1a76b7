// How MPI is called: checked, and by one thread at a time (MPI_THREAD_SERIALIZED). For mpi_*.cc alone.
#pragma once

#include <mpi.h>

#include <mutex>
#include <string>
#include <string_view>

namespace fenwick::mpi {

/// MPI's words for an error code.
[[nodiscard]] std::string describe(int code);
/// Throws UnavailableError with the call's name and MPI's words.
void check(int code, std::string_view call);
/// For destructors and ends.
void log_unless_ok(int code, std::string_view call) noexcept;

/// Held around every call while another thread of this process may call MPI too (the monitor's). Calls that wait for
/// peers must not be made with it.
[[nodiscard]] std::timed_mutex& call_mutex();

/// Ends all processes of the world with `code`, this one too; waits at most a second for whoever holds the mutex.
[[noreturn]] void end_world(MPI_Comm comm, int code) noexcept;

}  // namespace fenwick::mpi
