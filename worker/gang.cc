#include "worker/gang.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/errors.h"
#include "parallel/collectives.h"
#include "parallel/shard_plan.h"
#include "worker/saved_state.h"
#include "worker/shard_cost.h"

namespace fenwick {
namespace {

enum class Order : std::int64_t { kBegin, kPass, kRestore, kNote, kFinish };

// What rank 0 tells the others before each collective step.
struct Command {
    Order order = Order::kFinish;
    std::int64_t first_token = 0;  // kPass: where the pass starts; kRestore: the position restored
    std::int64_t tokens = 0;       // kPass: tokens of the pass
    std::int64_t targets = 0;      // kPass: losses asked for: `tokens`, or one less at the document's end
    std::int64_t resumable = 0;    // WorldStatus::resumable of rank 0
};

std::span<std::byte> bytes_of(Command& command) {
    return std::as_writable_bytes(std::span<Command>(&command, 1));
}

Activity activity_of(Order order) {
    switch (order) {
        case Order::kPass:
            return Activity::kPass;
        case Order::kRestore:
            return Activity::kRestoring;
        case Order::kFinish:
            return Activity::kEnding;
        case Order::kBegin:
        case Order::kNote:
            break;
    }
    return Activity::kWaiting;
}

// Targets of one shard: one for each token, but none past the end of the document.
std::int64_t shard_targets(const Shard& shard, const Command& command) {
    return std::clamp<std::int64_t>(command.first_token + command.targets - shard.first_token, 0, shard.tokens);
}

}  // namespace

/// Any rank's part of the gang's work; rank 0 gives the orders.
class Gang::Rank {
public:
    Rank(std::shared_ptr<const Model> model, Communicator& comm, int threads, Compute compute)
        : comm_(comm), prefill_(make_pass_runner(std::move(model), comm, threads, compute)) {}

    // Tells all ranks what comes (rank 0 passes the command, the others get it).
    Command announce(Command command = {}) {
        command.resumable = told_resumable_ ? 1 : 0;
        broadcast(comm_, bytes_of(command), 0);
        comm_.status().set_resumable(command.resumable != 0);
        comm_.status().set_step({activity_of(command.order), -1, command.first_token, {}});
        return command;
    }

    // What was ordered is done.
    void rest() { comm_.status().set_step({Activity::kWaiting, -1, position_, {}}); }

    void set_resumable(bool resumable) {
        if (told_resumable_ == resumable) return;
        told_resumable_ = resumable;
        comm_.status().set_resumable(resumable);
        announce({Order::kNote, position_, 0, 0, 0});
        rest();
    }

    void begin() {
        prefill_->reset();
        position_ = 0;
    }

    // `tokens` and `nll` on rank 0 alone: the pass's tokens and the last target; its losses.
    void pass(const Command& command, std::span<const std::int32_t> tokens, std::span<float> nll) {
        const ShardPlan plan =
            make_shard_plan(command.first_token, command.tokens, comm_.size(), level_cost(prefill_->model()));
        const Shard& mine = plan.shard(comm_.rank());
        const std::int64_t targets = shard_targets(mine, command);
        const std::vector<std::int32_t> own = scatter_tokens(command, plan, tokens);
        const std::span<const std::int32_t> all(own);
        std::vector<float> losses(static_cast<std::size_t>(targets));
        // The target of a row is the token after it.
        prefill_->run_pass(plan, all.first(static_cast<std::size_t>(mine.tokens)),
                           targets > 0 ? all.subspan(1, static_cast<std::size_t>(targets)) : all.first(0), losses);
        std::vector<std::int64_t> sizes;
        for (const Shard& shard : plan.shards) {
            sizes.push_back(shard_targets(shard, command) * static_cast<std::int64_t>(sizeof(float)));
        }
        gather_to_root(comm_, std::as_bytes(std::span<const float>(losses)), sizes, std::as_writable_bytes(nll));
        position_ += command.tokens;
        rest();
    }

    void save(const std::filesystem::path& file) {
        prefill_->collect_carries();
        write_state(file, prefill_->model(), position_, prefill_->carries());
    }

    std::int64_t load(const std::filesystem::path& file) {
        position_ = read_state(file, prefill_->model(), prefill_->carries());
        return position_;
    }

    // Hands rank 0's nodes to all ranks.
    void spread_nodes(std::int64_t position) {
        position_ = position;
        const BlockRun prefix{0, position / kBlockTokens};
        for (LayerCarry& carry : prefill_->carries()) {
            const std::int64_t floats = carry.nodes.floats();
            const std::size_t nodes = canonical_cover(prefix).size();
            std::vector<Summary> summaries;
            for (std::size_t i = 0; i < nodes; ++i) {
                auto summary = std::make_shared<SummaryBuffer>(floats);
                if (comm_.rank() == 0) {
                    std::copy_n(carry.nodes.values(static_cast<std::int64_t>(i)), floats, summary->data());
                }
                broadcast(comm_,
                          std::as_writable_bytes(std::span<float>(summary->data(), static_cast<std::size_t>(floats))),
                          0);
                summaries.push_back(std::move(summary));
            }
            carry.nodes = NodeSummaries(floats, prefix, std::move(summaries));
        }
        prefill_->carries_changed(position);
        rest();
    }

    [[nodiscard]] std::int64_t position() const { return position_; }

private:
    // This rank's tokens, and behind them the next one where it is a target.
    std::vector<std::int32_t> scatter_tokens(const Command& command, const ShardPlan& plan,
                                             std::span<const std::int32_t> tokens) {
        const auto wanted = [&](const Shard& shard) {
            return shard.tokens == 0 ? 0 : std::max(shard.tokens, shard_targets(shard, command) + 1);
        };
        const Shard& mine = plan.shard(comm_.rank());
        std::vector<std::int32_t> own(static_cast<std::size_t>(wanted(mine)));
        std::vector<SendOp> sends;
        std::vector<RecvOp> receives;
        if (comm_.rank() == 0) {
            for (int r = 0; r < comm_.size(); ++r) {
                const Shard& shard = plan.shard(r);
                if (wanted(shard) == 0) continue;
                const auto first = static_cast<std::size_t>(shard.first_token - command.first_token);
                sends.push_back({r, std::as_bytes(tokens.subspan(first, static_cast<std::size_t>(wanted(shard))))});
            }
        }
        if (!own.empty()) receives.push_back({0, std::as_writable_bytes(std::span<std::int32_t>(own))});
        comm_.exchange(sends, receives);
        return own;
    }

    Communicator& comm_;
    std::unique_ptr<PassRunner> prefill_;
    std::int64_t position_ = 0;
    bool told_resumable_ = false;
};

Gang::Gang(std::shared_ptr<const Model> model, Communicator& comm, int threads, Compute compute) {
    if (comm.rank() != 0) throw InternalError("a gang is led by rank 0, not by rank " + std::to_string(comm.rank()));
    rank_ = std::make_unique<Rank>(std::move(model), comm, threads, compute);
}

Gang::~Gang() = default;

void Gang::begin_document() {
    rank_->announce({Order::kBegin, 0, 0, 0, 0});
    rank_->begin();
}

std::int64_t Gang::position() const {
    return rank_->position();
}

void Gang::score_pass(std::span<const std::int32_t> tokens, std::int64_t count, std::span<float> nll) {
    const auto given = static_cast<std::int64_t>(tokens.size());
    const bool last = given == count;
    if (count < 1 || (!last && given != count + 1) || (!last && count % kBlockTokens != 0) ||
        position() % kBlockTokens != 0 || static_cast<std::int64_t>(nll.size()) != given - 1) {
        throw InternalError("score_pass: " + std::to_string(given) + " tokens, count " + std::to_string(count) + ", " +
                            std::to_string(nll.size()) + " losses at position " + std::to_string(position()));
    }
    const Command command = rank_->announce({Order::kPass, position(), count, given - 1, 0});
    rank_->pass(command, tokens, nll);
}

void Gang::save_state(const std::filesystem::path& file) {
    if (position() % kBlockTokens != 0) throw InternalError("a state is saved at a whole number of blocks");
    rank_->save(file);
}

void Gang::restore_state(const std::filesystem::path& file) {
    rank_->begin();
    const std::int64_t position = rank_->load(file);  // throws before anyone else is involved
    rank_->announce({Order::kRestore, position, 0, 0, 0});
    rank_->spread_nodes(position);
}

void Gang::set_resumable(bool resumable) {
    rank_->set_resumable(resumable);
}

void Gang::finish() {
    rank_->announce({Order::kFinish, 0, 0, 0, 0});
}

void serve_gang(std::shared_ptr<const Model> model, Communicator& comm, int threads, Compute compute) {
    Gang::Rank rank(std::move(model), comm, threads, compute);
    for (;;) {
        const Command command = rank.announce();
        switch (command.order) {
            case Order::kBegin:
                rank.begin();
                break;
            case Order::kPass:
                rank.pass(command, {}, {});
                break;
            case Order::kRestore:
                rank.begin();
                rank.spread_nodes(command.first_token);
                break;
            case Order::kNote:
                rank.rest();
                break;
            case Order::kFinish:
                return;
        }
    }
}

}  // namespace fenwick
