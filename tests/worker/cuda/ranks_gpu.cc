// Any number of ranks on the GPU: the losses' bytes are those of one rank, for every family, pass size and saved state.
// The ranks share one GPU here (tests/parallel/cuda/staged_device.h); ops/gpu-ranks-check does the same over NCCL.
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "parallel/shard_plan.h"
#include "parallel/thread_world.h"
#include "tests/parallel/cuda/staged_device.h"
#include "tests/worker/small_models.h"
#include "worker/cuda/gpu_prefill.h"

using namespace fenwick;
using namespace fenwick::testing;

namespace {

struct Lists {
    std::vector<std::vector<float>> nodes;  ///< every node of every layer after the last pass
    std::vector<std::vector<float>> conv_rows;
};

/// Losses of `ids` on `ranks` ranks in passes of `pass_tokens`; `lists` gets what rank 0 carries at the end.
std::vector<float> score_ranks(const std::shared_ptr<const Model>& model, const std::vector<std::int32_t>& ids,
                               int ranks, std::int64_t pass_tokens, cuda::Operand operand, Lists& lists) {
    const auto tokens = static_cast<std::int64_t>(ids.size());
    std::vector<float> nll(ids.size() - 1, -1.0F);
    run_thread_ranks(ranks, [&](Communicator& comm) {
        cuda::GpuPrefill prefill(model, operand, std::make_unique<StagedDeviceCommunicator>(comm), comm.status());
        for (std::int64_t first = 0; first < tokens; first += pass_tokens) {
            const ShardPlan plan = make_shard_plan(first, std::min(pass_tokens, tokens - first), ranks);
            const Shard& mine = plan.shard(comm.rank());
            const auto at = static_cast<std::size_t>(mine.first_token);
            const auto count = static_cast<std::size_t>(mine.tokens);
            const std::size_t targets = count == 0 ? 0 : std::min(count, ids.size() - 1 - at);
            const std::span<const std::int32_t> all(ids);
            prefill.run_pass(plan, all.subspan(at, count), count == 0 ? all.first(0) : all.subspan(at + 1, targets),
                             std::span(nll).subspan(count == 0 ? 0 : at, targets));
        }
        if (comm.rank() != 0) return;
        prefill.collect_carries();
        for (const LayerCarry& carry : prefill.carries()) {
            for (std::int64_t i = 0; i < carry.nodes.size(); ++i) {
                lists.nodes.emplace_back(carry.nodes.values(i), carry.nodes.values(i) + carry.nodes.floats());
            }
            lists.conv_rows.emplace_back(carry.conv_rows.begin(), carry.conv_rows.end());
        }
    });
    return nll;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (!same_bits(a[i], b[i])) return false;
    }
    return true;
}

}  // namespace

TEST_CASE("ranks on the GPU give the bytes of one, for every family and uneven passes") {
    const TemporaryModels models;
    // Eleven whole blocks and a tail of two tokens, shorter than the convolution: shards of unequal size, halos from
    // two ranks and ranks with nothing at all.
    const std::int64_t tokens = 11 * kBlockTokens + 2;
    const std::vector<std::int32_t> ids = random_ids(tokens, 256, 13);
    for (const char* family : kFamilies) {
        const std::shared_ptr<const Model> model = Model::load(models.make_wide(family));
        for (const cuda::Operand operand : {cuda::Operand::kBf16, cuda::Operand::kFp32}) {
            Lists expected;
            const std::vector<float> want = score_ranks(model, ids, 1, tokens, operand, expected);
            const bool bf16 = operand == cuda::Operand::kBf16;
            for (const int ranks : bf16 ? std::vector{1, 2, 3, 5, 7, 13} : std::vector{3}) {
                for (const std::int64_t pass : {tokens, 5 * kBlockTokens, 3 * kBlockTokens}) {
                    INFO(family << (bf16 ? " in bf16, " : " in fp32, ") << ranks << " ranks, passes of " << pass);
                    Lists lists;
                    const std::vector<float> got = score_ranks(model, ids, ranks, pass, operand, lists);
                    CHECK(same_bits(got, want));
                    CHECK(same_bits(lists.nodes, expected.nodes));
                    CHECK(same_bits(lists.conv_rows, expected.conv_rows));
                }
            }
        }
    }
}
