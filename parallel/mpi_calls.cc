#include "parallel/mpi_calls.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "core/errors.h"

namespace fenwick::mpi {

std::string describe(int code) {
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return fmt::format("MPI error {}", code);
    return {text, static_cast<std::size_t>(length)};
}

void check(int code, std::string_view call) {
    if (code != MPI_SUCCESS) throw UnavailableError(fmt::format("{}: {}", call, describe(code)));
}

void log_unless_ok(int code, std::string_view call) noexcept {
    if (code == MPI_SUCCESS) return;
    try {
        spdlog::error("{}: {}", call, describe(code));
    } catch (...) {  // NOLINT(bugprone-empty-catch): nothing is left to report with
    }
}

std::timed_mutex& call_mutex() {
    static std::timed_mutex mutex;
    return mutex;
}

void end_world(MPI_Comm comm, int code) noexcept {
    const std::unique_lock<std::timed_mutex> lock(call_mutex(), std::chrono::seconds(1));
    log_unless_ok(MPI_Abort(comm, code), "MPI_Abort");
    std::_Exit(code);  // MPI_Abort may return where the launcher is gone; this rank must not go on
}

}  // namespace fenwick::mpi
