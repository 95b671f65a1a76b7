// A world of one rank.
#pragma once

#include "parallel/communicator.h"

namespace fenwick {

/// Messages to oneself are copied; there is nobody else.
class SelfCommunicator final : public Communicator {
public:
    [[nodiscard]] int rank() const override { return 0; }
    [[nodiscard]] int size() const override { return 1; }
    [[nodiscard]] std::string name() const override { return "self"; }
    void exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) override;
    void abort(const std::string& reason, ExitCode code) noexcept override;

private:
    bool aborted_ = false;
    std::string reason_;
};

}  // namespace fenwick
