#include "coordinator/gang_host.h"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <new>
#include <span>
#include <vector>

#include "parallel/self_communicator.h"
#include "parallel/thread_world.h"

namespace fenwick {
namespace {

/// The current exception as an Error; one of a rank other than 0 names it.
Error current_error(int rank) {
    const std::string prefix = rank == 0 ? "" : fmt::format("rank {}: ", rank);
    try {
        throw;
    } catch (const Error& e) {
        return {e.code(), prefix + e.what()};
    } catch (const std::bad_alloc&) {
        return {ExitCode::kUnavailable,
                prefix + "out of memory: use a smaller --pass-tokens, or more ranks on more hosts"};
    } catch (const std::exception& e) {
        return {ExitCode::kInternal, prefix + e.what()};
    } catch (...) {
        return {ExitCode::kInternal, prefix + "an error of unknown type"};
    }
}

/// The code for the current exception, which is an Error of `code`: a lost peer is no failure where --resume continues.
ExitCode end_code(Communicator& comm, ExitCode code) {
    try {
        throw;
    } catch (const PeerLostError&) {
        return comm.status().resumable() ? ExitCode::kInterrupted : code;
    } catch (...) {
        return code;
    }
}

/// Rank 0's part. An error of `lead` itself leaves a whole gang: it is told to finish and the error is returned. Throws
/// when the gang is broken.
std::exception_ptr lead_gang(const std::shared_ptr<const Model>& model, Communicator& comm, int threads,
                             Compute compute, const Lead& lead) {
    LedGang gang(model, comm, threads, compute);
    std::exception_ptr error;
    try {
        lead(gang);
    } catch (...) {
        if (gang.broken()) throw;
        error = std::current_exception();
    }
    gang.finish();
    return error;
}

std::exception_ptr take_part(const std::shared_ptr<const Model>& model, Communicator& comm, int threads,
                             Compute compute, const Lead& lead) {
    if (comm.rank() == 0) return lead_gang(model, comm, threads, compute, lead);
    try {
        serve_gang(model, comm, threads, compute);
    } catch (const PeerLostError& error) {
        throw PeerLostError(fmt::format("rank {}: {}", comm.rank(), error.what()));
    } catch (...) {
        throw current_error(comm.rank());
    }
    return nullptr;
}

}  // namespace

void run_thread_gang(const std::shared_ptr<const Model>& model, int ranks, int threads, Compute compute,
                     const Lead& lead) {
    std::exception_ptr error;
    if (ranks == 1) {
        SelfCommunicator self;
        error = lead_gang(model, self, threads, compute, lead);
    } else {
        run_thread_ranks(ranks, [&](Communicator& comm) {
            std::exception_ptr own = take_part(model, comm, threads, compute, lead);
            if (comm.rank() == 0) error = own;
        });
    }
    if (error != nullptr) std::rethrow_exception(error);
}

void run_gang(const std::shared_ptr<const Model>& model, Communicator& comm, int threads, Compute compute,
              const Lead& lead) {
    run_rank(comm, [&] { return take_part(model, comm, threads, compute, lead); });
}

void run_rank(Communicator& comm, const std::function<std::exception_ptr()>& part) {
    std::exception_ptr error;
    try {
        error = part();
    } catch (...) {
        const Error error_here = current_error(comm.rank());
        comm.abort(error_here.what(), end_code(comm, error_here.code()));
        throw;
    }
    if (error != nullptr) std::rethrow_exception(error);
}

void run_thread_parts(int ranks, const std::function<std::exception_ptr(Communicator&)>& part) {
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
    run_thread_ranks(ranks, [&](Communicator& comm) {
        try {
            errors[static_cast<std::size_t>(comm.rank())] = part(comm);
        } catch (const PeerLostError&) {
            throw;
        } catch (...) {
            throw current_error(comm.rank());
        }
    });
    for (const std::exception_ptr& error : errors) {
        if (error == nullptr) continue;
        try {
            std::rethrow_exception(error);
        } catch (const PeerFailed&) {
            continue;  // another one of these says why
        }
    }
}

void together(Communicator& comm, const std::function<void()>& step) {
    std::exception_ptr error;
    int code = 0;
    try {
        step();
    } catch (...) {
        const Error own = current_error(comm.rank());
        code = static_cast<int>(own.code());
        error = comm.rank() == 0 ? std::current_exception() : std::make_exception_ptr(own);
    }
    std::array<int, 2> first = {-1, 0};  // the lowest rank that failed, its exit code
    if (comm.rank() == 0) {
        std::vector<int> codes(static_cast<std::size_t>(comm.size()), 0);
        std::vector<RecvOp> receives;
        for (int rank = 1; rank < comm.size(); ++rank) {
            receives.push_back({rank, std::as_writable_bytes(std::span(&codes[static_cast<std::size_t>(rank)], 1))});
        }
        comm.exchange({}, receives);
        codes[0] = code;
        for (int rank = comm.size() - 1; rank >= 0; --rank) {
            if (codes[static_cast<std::size_t>(rank)] != 0) first = {rank, codes[static_cast<std::size_t>(rank)]};
        }
    } else {
        const SendOp send{0, std::as_bytes(std::span(&code, 1))};
        comm.exchange(std::span(&send, 1), {});
    }
    broadcast(comm, std::as_writable_bytes(std::span(first)));
    if (first[0] < 0) return;
    if (first[0] == comm.rank()) std::rethrow_exception(error);
    throw PeerFailed(static_cast<ExitCode>(first[1]), first[0]);
}

}  // namespace fenwick
