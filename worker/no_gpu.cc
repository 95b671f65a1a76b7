// worker/gpu.h where no CUDA kernels were built.
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

std::int64_t gpu_pass_tokens(const Model& /*model*/, bool /*bf16*/) {
    refuse();
}

std::unique_ptr<PassRunner> make_gpu_prefill(std::shared_ptr<const Model> /*model*/, const Communicator& /*comm*/,
                                             bool /*bf16*/) {
    refuse();
}

}  // namespace fenwick
