// What the host build does not have: forward kernels of the matrix units, and facts of the device.
#include "core/cuda/device_info.h"
#include "cuda_on_host.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/scalar_plan.h"
#define NO(name)                                                      \
    {                                                                 \
        std::fprintf(stderr, "host build: " #name " is not there\n"); \
        std::abort();                                                 \
    }
namespace fenwick::cuda {
std::int64_t free_device_bytes() {
    const char* gib = std::getenv("HOST_FREE_MIB");
    return (gib ? std::atoll(gib) : 4000) << 20;
}
namespace scalar {
void launch_walk(const Plan&, const MixerCall&, std::int64_t, float*)
    NO(launch_walk) void launch_outputs(const Plan&, const MixerCall&, void*) NO(launch_outputs)
}
namespace matrix {
void launch_prepare(const MixerShape&, const MixerInputs&, const Prepared&, cudaStream_t)
    NO(prepare) void launch_summaries(const Walk&, std::int64_t, float*, cudaStream_t)
        NO(summaries) void launch_enter(const MixerShape&, const Nodes&, std::int64_t, int, float*, cudaStream_t)
            NO(enter) void launch_linear(const Walk&, void*, cudaStream_t)
                NO(linear) void launch_expand(const Walk&, cudaStream_t) NO(expand) bool needs_partial_sums(int) {
    return false;
}
int log_linear_shared_bytes(std::int64_t) {
    return 0;
}
void launch_log_linear(const Walk&, void*, cudaStream_t) NO(log_linear)
}  // namespace matrix
}  // namespace fenwick::cuda
