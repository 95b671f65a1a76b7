// Typed errors. Libraries throw them; only a main() turns one into an exit code (DESIGN: exit codes follow sysexits.h).
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace fenwick {

/// What the process tells its caller. Values are part of the command line's contract.
enum class ExitCode : int {
    kDone = 0,
    kUsage = 2,
    kSomeDocumentsFailed = 3,
    kBadInput = 65,
    kUnavailable = 69,
    kInternal = 70,
    kInterrupted = 75,
    kBadConfiguration = 78,
};

/// Base of every error that Fenwick throws on purpose. The message names the file or field, what was expected, what was
/// found, and what to do next where that is not obvious.
class Error : public std::runtime_error {
public:
    Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    [[nodiscard]] ExitCode code() const noexcept { return code_; }

private:
    ExitCode code_;
};

/// The command line or an argument is wrong (exit 2).
class UsageError : public Error {
public:
    explicit UsageError(const std::string& message) : Error(ExitCode::kUsage, message) {}
};

/// Input data (a document, a checkpoint file) is damaged or impossible (exit 65).
class DataError : public Error {
public:
    explicit DataError(const std::string& message) : Error(ExitCode::kBadInput, message) {}
};

/// Something outside the program is missing or full: a device, a disk, a peer (exit 69).
class UnavailableError : public Error {
public:
    explicit UnavailableError(const std::string& message) : Error(ExitCode::kUnavailable, message) {}
};

/// A peer of this process is gone or no longer answers (exit 69, or 75 where progress was saved).
class PeerLostError : public UnavailableError {
public:
    explicit PeerLostError(const std::string& message) : UnavailableError(message) {}
};

/// A broken promise of our own code (exit 70).
class InternalError : public Error {
public:
    explicit InternalError(const std::string& message) : Error(ExitCode::kInternal, message) {}
};

/// Stopped on request with progress saved; running again with --resume continues (exit 75).
class InterruptedError : public Error {
public:
    explicit InterruptedError(const std::string& message) : Error(ExitCode::kInterrupted, message) {}
};

/// A configuration (config.json, a settings file) asks for something impossible or unknown (exit 78).
class ConfigError : public Error {
public:
    explicit ConfigError(const std::string& message) : Error(ExitCode::kBadConfiguration, message) {}
};

}  // namespace fenwick
