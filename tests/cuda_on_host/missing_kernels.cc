// What the host build does not have: the scalar algebra's forward kernels of the matrix units, and facts of the device.
#include "core/cuda/device_info.h"
#include "cuda_on_host.h"
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
}  // namespace fenwick::cuda
