// The nearest thing to a full disk that needs no privileges.
#pragma once

#include <signal.h>  // NOLINT(modernize-deprecated-headers): SIGXFSZ is POSIX
#include <sys/resource.h>

#include <catch2/catch.hpp>

namespace fenwick::testing {

/// Limits the size of every file that this process writes, while it lives.
class FileSizeLimit {
public:
    explicit FileSizeLimit(rlim_t bytes) {
        handler_ = ::signal(SIGXFSZ, SIG_IGN);
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &saved_) == 0);
        rlimit limit = saved_;
        limit.rlim_cur = bytes;
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    }
    FileSizeLimit(const FileSizeLimit&) = delete;
    FileSizeLimit& operator=(const FileSizeLimit&) = delete;
    ~FileSizeLimit() {
        ::setrlimit(RLIMIT_FSIZE, &saved_);
        ::signal(SIGXFSZ, handler_);
    }

private:
    rlimit saved_{};
    void (*handler_)(int) = nullptr;
};

}  // namespace fenwick::testing
