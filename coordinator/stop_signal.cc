#include "coordinator/stop_signal.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/errors.h"

namespace fenwick {
namespace {

std::atomic<int> stop_number{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch lock-free atomics only");

extern "C" void note_stop(int number) {
    stop_number.store(number);
}

void install(int number, void (*handler)(int), int flags) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, &action, nullptr) != 0) {
        throw InternalError(fmt::format("sigaction({}): {}", number, std::strerror(errno)));
    }
}

}  // namespace

void catch_stop_signals() {
    install(SIGTERM, note_stop, SA_RESTART);
    install(SIGUSR2, note_stop, SA_RESTART);
    install(SIGINT, note_stop, SA_RESTART | static_cast<int>(SA_RESETHAND));
    install(SIGXFSZ, SIG_IGN, 0);
}

const char* stop_requested() noexcept {
    switch (stop_number.load()) {
        case 0:
            return nullptr;
        case SIGINT:
            return "SIGINT";
        case SIGUSR2:
            return "SIGUSR2";
        default:
            return "SIGTERM";
    }
}

}  // namespace fenwick
