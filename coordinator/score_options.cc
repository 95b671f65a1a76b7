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
#include "worker/gpu.h"

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

Execution resolve_execution(const std::string& device, const std::string& dtype, int ranks) {
    if (device != "auto" && device != "cpu" && device != "cuda") {
        throw UsageError(fmt::format("--device {}: expected auto, cpu or cuda", device));
    }
    if (dtype != "auto" && dtype != "fp32" && dtype != "bf16") {
        throw UsageError(fmt::format("--dtype {}: expected auto, fp32 or bf16", dtype));
    }
    bool gpu = false;
    if (device == "cuda") {
        const GpuStatus status = gpu_status(false);
        if (!status.built) throw UnavailableError("--device cuda: " + status.text + "; " + status.advice);
        if (!status.usable) {
            throw UnavailableError(
                fmt::format("--device cuda: no GPU can be used here ({}); use --device cpu or auto", status.text));
        }
        if (ranks > 1) {
            throw UnavailableError(fmt::format(
                "--device cuda: this version runs on one GPU with one rank, not {}; leave --ranks out, or use --device "
                "cpu",
                ranks));
        }
        gpu = true;
    } else if (device == "auto" && ranks == 1) {
        gpu = gpu_status(false).usable;
    }
    if (gpu) return {"cuda", dtype == "fp32" ? "fp32" : "bf16"};
    if (dtype == "bf16") throw UsageError("--dtype bf16: the CPU computes in fp32; bf16 needs --device cuda");
    return {"cpu", "fp32"};
}

std::int64_t resolve_pass_tokens(const std::string& text, const Execution& execution, int ranks, const Model& model) {
    if (text.empty() && execution.on_gpu()) return gpu_pass_tokens(model, execution.dtype == "bf16");
    return parse_pass_tokens(text, ranks);
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
