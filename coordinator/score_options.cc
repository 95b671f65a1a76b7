#include "coordinator/score_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <thread>

#include "coordinator/machine.h"
#include "core/errors.h"
#include "core/fenwick.h"

namespace fenwick {
namespace {

template <class T>
bool parse_whole(std::string_view text, T& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::int64_t parse_pass_tokens(const std::string& text, int ranks) {
    if (text.empty()) return kDefaultPassTokensPerRank * ranks;
    if (text == "unlimited") return kUnlimitedPass;
    std::int64_t tokens = 0;
    if (!parse_whole(text, tokens)) {
        throw UsageError(fmt::format("--pass-tokens {}: expected a positive multiple of {} or the word unlimited", text,
                                     kBlockTokens));
    }
    if (tokens > 0 && tokens % kBlockTokens == 0) return tokens;
    const std::int64_t below = tokens > 0 ? tokens / kBlockTokens * kBlockTokens : 0;
    if (below == 0 || below > std::numeric_limits<std::int64_t>::max() - kBlockTokens) {
        throw UsageError(fmt::format("--pass-tokens {}: expected a positive multiple of {}; the nearest is {}", text,
                                     kBlockTokens, std::max(below, kBlockTokens)));
    }
    throw UsageError(fmt::format("--pass-tokens {}: expected a positive multiple of {}; the nearest are {} and {}",
                                 text, kBlockTokens, below, below + kBlockTokens));
}

int resolve_ranks(std::optional<int> asked, int world_size) {
    if (asked && *asked < 1) throw UsageError(fmt::format("--ranks {}: expected at least 1", *asked));
    if (world_size == 0) return asked.value_or(1);
    if (asked && *asked != world_size) {
        throw UsageError(
            fmt::format("--ranks {}: the MPI world has {} ranks; leave --ranks out, or start that many processes",
                        *asked, world_size));
    }
    return world_size;
}

int threads_per_rank(int ranks_on_host, bool launched_by_mpi) {
    if (const char* text = std::getenv("OMP_NUM_THREADS"); text != nullptr) {
        int threads = 0;
        // A list ("4,2") gives one number per nesting level; ours is the first.
        const std::string_view all(text);
        if (parse_whole(all.substr(0, all.find(',')), threads) && threads >= 1) return threads;
    }
    const int cores = usable_cores();
    if (!launched_by_mpi) return std::max(1, cores / ranks_on_host);
    // A launcher that binds its processes has divided the cores already; one that does not shows all of them to each.
    const int online = std::max(cores, static_cast<int>(std::thread::hardware_concurrency()));
    return std::max(1, std::min(cores, online / ranks_on_host));
}

}  // namespace fenwick
