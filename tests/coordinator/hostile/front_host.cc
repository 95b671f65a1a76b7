// The front alone with a service of fixed answers behind it, as a process: what hostile.py attacks where building the
// whole program with sanitizers takes too long. Prints its ports as JSON; ends with SIGTERM.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>

#include "../front/support.h"

int main() {
    try {
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGTERM);
        if (pthread_sigmask(SIG_BLOCK, &signals, nullptr) != 0) return 1;    // before there are threads: all inherit it
        spdlog::set_default_logger(spdlog::stderr_logger_mt("front_host"));  // nobody reads stdout after its first line
        fenwick::ListenOptions options;
        options.limits.frame_bytes = 16 << 20;  // as the coordinator's defaults
        options.limits.connections = 1000;
        options.limits.frame_time = options.limits.write_time = std::chrono::seconds(10);
        fenwick::ListenOptions http = options;
        http.limits.frame_bytes = 16 << 10;
        const fenwick::testing::RunningFront front(options, http, 4);
        fmt::print("{{\"api_port\": {}, \"http_port\": {}}}\n", front.rpc_port(), front.http_port());
        std::fflush(stdout);
        int signal = 0;
        return sigwait(&signals, &signal);
    } catch (const std::exception& error) {
        fmt::print(stderr, "front_host: {}\n", error.what());
        return 1;
    }
}
