// worker/gpu.h where no CUDA kernels were built.
#include <unistd.h>

#include <algorithm>
#include <string>

#include "core/errors.h"
#include "worker/gpu.h"

namespace fenwick {
namespace {

constexpr const char* kNotBuilt = "this build of fenwick has no CUDA kernels";
constexpr const char* kAdvice = "use --device cpu or auto ('fenwick doctor' shows what was built)";

[[noreturn]] void refuse() {
    throw UnavailableError(std::string("--device cuda: ") + kNotBuilt + "; " + kAdvice);
}

}  // namespace

GpuStatus gpu_status(bool /*open*/) {
    return {false, false, kNotBuilt, kAdvice};
}

std::string gpu_collectives() {
    return {};
}

GpuFacts look_at_gpu(int /*local_rank*/) {
    GpuFacts facts;
    if (gethostname(facts.host.data(), facts.host.size() - 1) != 0) facts.host = {"an unknown host"};
    std::copy_n(kNotBuilt, std::char_traits<char>::length(kNotBuilt), facts.problem.begin());
    return facts;
}

std::int64_t gpu_pass_tokens(const Model& /*model*/, bool /*bf16*/, int /*device*/) {
    refuse();
}

std::unique_ptr<PassRunner> make_gpu_prefill(std::shared_ptr<const Model> /*model*/, Communicator& /*comm*/,
                                             const Compute& /*compute*/) {
    refuse();
}

std::unique_ptr<TrainingEngine> make_gpu_engine(const std::shared_ptr<Model>& /*model*/, Communicator& /*world*/,
                                                const TrainingRanks& /*ranks*/, const BackpropOptions& /*options*/,
                                                const Compute& /*compute*/) {
    refuse();
}

}  // namespace fenwick
