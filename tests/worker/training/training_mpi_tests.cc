// Backprop in a world of processes, started by mpirun: gradients over all ranks against one rank's. Rank 0 reports.
#include <cstdio>
#include <exception>
#include <string>

#include "core/errors.h"
#include "parallel/collectives.h"
#include "parallel/mpi_communicator.h"
#include "tests/worker/training/gradient_tools.h"

namespace fenwick {
namespace {

/// The sum of all ranks' gradients, in their order, on rank 0.
std::vector<float> gather_sum(Communicator& comm, Gradients& own) {
    const std::span<float> mine = own.all();
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(comm.size()),
                                          static_cast<std::int64_t>(mine.size_bytes()));
    std::vector<float> all(comm.rank() == 0 ? mine.size() * sizes.size() : 0);
    gather_to_root(comm, std::as_bytes(mine), sizes, std::as_writable_bytes(std::span(all)));
    std::vector<float> sum(mine.size(), 0.0F);
    for (std::size_t i = 0; i < all.size(); ++i) sum[i % sum.size()] += all[i];
    return sum;
}

/// Nothing, or what is wrong (on rank 0).
std::string check_family(Communicator& comm, const testing::TemporaryModels& models, const std::string& family) {
    const std::vector<testing::Document> documents = {testing::random_document(kBlockTokens + 2, 1),
                                                      testing::random_document(70, 2),
                                                      testing::random_document(3 * kBlockTokens + 1, 3)};
    // Every process makes the same model for itself.
    const std::shared_ptr<Model> model = Model::load_for_training(testing::make_smooth_tiny(models, family));
    Gradients gradients(model->parameters());
    Backprop backprop(model, comm, 1);
    backprop.run(testing::part_of(documents, comm.rank(), comm.size()), 1.0F, gradients);
    const std::vector<float> got = gather_sum(comm, gradients);
    if (comm.rank() != 0) return "";
    const testing::BatchResult want = testing::run_batch(model, documents);
    std::string worst;
    const double error = testing::relative_error(model->parameters(), got, want.gradients, worst);
    std::printf("%s on %d ranks: largest relative difference %.1e (%s)\n", family.c_str(), comm.size(), error,
                worst.c_str());
    return error <= 1e-5 ? "" : family + ": " + worst + " differs by " + std::to_string(error);
}

int run(Communicator& comm) {
    const testing::TemporaryModels models;
    std::string wrong;
    for (const char* family : testing::kFamilies) wrong += check_family(comm, models, family);
    std::int32_t failed = wrong.empty() ? 0 : 1;
    broadcast(comm, std::as_writable_bytes(std::span(&failed, 1)));
    if (!wrong.empty()) std::fprintf(stderr, "training_mpi_tests: %s\n", wrong.c_str());
    return failed;
}

}  // namespace
}  // namespace fenwick

int main() {
    using namespace fenwick;
    if (!launched_under_mpi()) {
        std::fprintf(stderr, "training_mpi_tests: start me with mpirun\n");
        return static_cast<int>(ExitCode::kUsage);
    }
    try {
        const MpiEnvironment environment;
        MpiCommunicator comm({std::chrono::milliseconds(60000)});
        try {
            return run(comm);
        } catch (const std::exception& error) {
            comm.abort(error.what(), ExitCode::kUnavailable);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "training_mpi_tests: %s\n", error.what());
    }
    return 1;
}
