#include "parallel/self_communicator.h"

#include <fmt/format.h>

#include <cstring>

#include "core/errors.h"

namespace fenwick {

void SelfCommunicator::exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) {
    if (aborted_) throw UnavailableError(fmt::format("rank 0 ended the world: {}", reason_));
    if (sends.size() != recvs.size()) {
        throw InternalError(fmt::format("self communicator: {} sends but {} receives", sends.size(), recvs.size()));
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
        if (sends[i].to != 0 || recvs[i].from != 0) {
            throw InternalError(
                fmt::format("self communicator: there is no rank {}", sends[i].to != 0 ? sends[i].to : recvs[i].from));
        }
        if (sends[i].bytes.size() != recvs[i].bytes.size()) {
            throw InternalError(fmt::format("self communicator: message {} has {} bytes, its receiver expects {}", i,
                                            sends[i].bytes.size(), recvs[i].bytes.size()));
        }
        if (!sends[i].bytes.empty()) {
            std::memmove(recvs[i].bytes.data(), sends[i].bytes.data(), sends[i].bytes.size());
        }
    }
}

void SelfCommunicator::abort(const std::string& reason, ExitCode /*code*/) noexcept {
    if (aborted_) return;
    aborted_ = true;
    try {
        reason_ = reason;
    } catch (...) {
        reason_.clear();  // out of memory: the world still ends, without its reason
    }
}

}  // namespace fenwick
