// Small random models of every family, written once per test program into a temporary folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/scratch_folder.h"
#include "parallel/self_communicator.h"
#include "parallel/thread_world.h"
#include "worker/gang.h"
#include "worker/init.h"

namespace fenwick::testing {

inline constexpr const char* kFamilies[] = {"log_linear_mamba2", "mamba2", "h_gated_deltanet", "gated_deltanet"};

/// A folder of models that goes away with the object.
class TemporaryModels {
public:
    [[nodiscard]] const std::filesystem::path& root() const { return folder_.path(); }

    /// A model whose weights are large enough for every part to matter in the losses.
    [[nodiscard]] std::filesystem::path make(const std::string& family) const {
        RandomModelOptions options;
        options.family = family;
        options.output = folder_ / family;
        options.hidden_size = 64;
        options.layers = 2;
        options.heads = 4;
        options.head_dim = 16;
        options.state_size = 16;
        options.seed = 42;
        options.initializer_range = 0.15;
        if (!std::filesystem::exists(options.output)) write_random_model(options);
        return options.output;
    }

    /// Three heads of sizes that the matrix units take, in `root()`/wide_FAMILY.
    [[nodiscard]] std::filesystem::path make_wide(const std::string& family) const {
        RandomModelOptions options;
        options.family = family;
        options.output = folder_ / ("wide_" + family);
        options.hidden_size = 128;
        options.layers = 2;
        options.heads = 3;
        options.head_dim = 64;
        options.state_size = 64;
        options.seed = 7;
        options.initializer_range = 0.1;
        if (!std::filesystem::exists(options.output)) write_random_model(options);
        return options.output;
    }

private:
    ScratchFolder folder_{"fenwick-models-"};
};

inline std::vector<std::int32_t> random_ids(std::int64_t count, std::int32_t vocab, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<std::int32_t> draw(0, vocab - 1);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    for (std::int32_t& id : ids) id = draw(random);
    return ids;
}

/// Scores `ids` from the gang's position on, in passes of `pass_tokens` (0: the rest at once), up to `until` tokens.
inline std::vector<float> score(Gang& gang, const std::vector<std::int32_t>& ids, std::int64_t pass_tokens,
                                std::int64_t until = -1) {
    const auto tokens = static_cast<std::int64_t>(ids.size());
    const std::int64_t end = until < 0 ? tokens : until;
    std::vector<float> nll;
    while (gang.position() < end) {
        const std::int64_t first = gang.position();
        const std::int64_t count = pass_tokens == 0 ? tokens - first : std::min(pass_tokens, tokens - first);
        const std::int64_t given = std::min(count + 1, tokens - first);
        std::vector<float> part(static_cast<std::size_t>(given - 1), -1.0F);
        gang.score_pass(std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(given)), count,
                        part);
        nll.insert(nll.end(), part.begin(), part.end());
    }
    return nll;
}

/// Runs `lead` as rank 0 of `ranks` thread ranks.
template <class Lead>
void with_gang(const std::shared_ptr<const Model>& model, int ranks, const Lead& lead) {
    ThreadWorld world(ranks);
    std::vector<std::thread> followers;
    for (int r = 1; r < ranks; ++r) {
        followers.emplace_back([&world, &model, r] { serve_gang(model, *world.communicator(r), 1); });
    }
    {
        const std::unique_ptr<Communicator> comm = world.communicator(0);
        Gang gang(model, *comm, 1);
        gang.begin_document();
        lead(gang);
        gang.finish();
    }
    for (std::thread& follower : followers) follower.join();
}

inline std::vector<float> score_on(const std::shared_ptr<const Model>& model, const std::vector<std::int32_t>& ids,
                                   int ranks, std::int64_t pass_tokens) {
    std::vector<float> nll;
    with_gang(model, ranks, [&](Gang& gang) { nll = score(gang, ids, pass_tokens); });
    return nll;
}

}  // namespace fenwick::testing
