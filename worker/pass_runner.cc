#include "worker/pass_runner.h"

#include <utility>

#include "worker/gpu.h"
#include "worker/prefill.h"

namespace fenwick {

std::unique_ptr<PassRunner> make_pass_runner(std::shared_ptr<const Model> model, Communicator& comm, int threads,
                                             Compute compute) {
    if (compute.gpu) return make_gpu_prefill(std::move(model), comm, compute);
    return std::make_unique<Prefill>(std::move(model), comm, threads);
}

}  // namespace fenwick
