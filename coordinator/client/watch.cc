#include "coordinator/client/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "coordinator/api/idl_json.h"
#include "coordinator/client/job_text.h"

namespace fenwick {
namespace {

constexpr std::int64_t kWaitMs = 30'000;
constexpr auto kLineInterval = std::chrono::seconds(10);
/// A busy job changes many times a second: nobody reads that fast.
constexpr auto kLookInterval = std::chrono::milliseconds(300);

}  // namespace

idl::Job watch_job(ServiceClient& client, const std::string& job_id, bool silent) {
    const bool terminal = ::isatty(STDERR_FILENO) == 1;
    auto last_line = std::chrono::steady_clock::now() - kLineInterval;
    idl::Job job = client.get(&idl::FenwickClient::getJob, job_id);
    for (;;) {
        const bool over = is_over(job.state);
        const auto now = std::chrono::steady_clock::now();
        if (!silent && terminal) {
            fmt::print(stderr, "\r\x1b[K{}{}", progress_line(job), over ? "\n" : "");
            std::fflush(stderr);
        } else if (!silent && (over || now - last_line >= kLineInterval)) {
            last_line = now;
            fmt::print(stderr, "{} {}\n", job.id, progress_line(job));
        }
        if (over) return job;
        std::this_thread::sleep_for(kLookInterval);
        job = client.get(&idl::FenwickClient::waitJob, job_id, job.version, kWaitMs);
    }
}

}  // namespace fenwick
