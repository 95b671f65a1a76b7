// Whole models on the GPU: golden checkpoints, the CPU's losses, and the same bits for every pass size, on repetition
// and across a saved state.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "core/safetensors.h"
#include "parallel/self_communicator.h"
#include "tests/worker/reference_model.h"
#include "tests/worker/small_models.h"
#include "worker/gang.h"

using namespace fenwick;
using namespace fenwick::testing;

namespace {

constexpr Compute kCpu{};
constexpr Compute kFp32{true, false};
constexpr Compute kBf16{true, true};

/// The golden data, also where the program was carried to another machine.
std::filesystem::path golden_folder() {
    const char* moved = std::getenv("FENWICK_TEST_DATA");
    return std::filesystem::path(moved == nullptr ? FENWICK_TEST_DATA : moved) / "golden";
}

template <class T>
std::vector<T> tensor(const SafetensorsFile& file, const char* name) {
    const TensorInfo* info = file.find(name);
    REQUIRE(info != nullptr);
    std::vector<T> values(static_cast<std::size_t>(info->bytes) / sizeof(T));
    std::memcpy(values.data(), info->data, static_cast<std::size_t>(info->bytes));
    return values;
}

struct Difference {
    double worst = 0.0;
    double mean = 0.0;  ///< of the losses' means
    double rms = 0.0;
};

Difference difference(const std::vector<float>& got, const std::vector<float>& want) {
    REQUIRE(got.size() == want.size());
    Difference d;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = static_cast<double>(got[i]) - static_cast<double>(want[i]);
        if (!(std::fabs(error) <= d.worst)) d.worst = std::isnan(error) ? INFINITY : std::fabs(error);
        d.mean += error / static_cast<double>(got.size());
        d.rms += error * error / static_cast<double>(got.size());
    }
    d.mean = std::fabs(d.mean);
    d.rms = std::sqrt(d.rms);
    return d;
}

std::vector<float> score_with(const std::shared_ptr<const Model>& model, const std::vector<std::int32_t>& ids,
                              std::int64_t pass_tokens, Compute compute) {
    SelfCommunicator self;
    Gang gang(model, self, 8, compute);
    gang.begin_document();
    return score(gang, ids, pass_tokens);
}

/// What rounding to bf16 between the kernels does to a model's losses, on the first tokens of a document: in double, by
/// the reference.
Difference rounding_difference(const std::filesystem::path& folder, const std::vector<std::int32_t>& ids) {
    const std::vector<std::int32_t> few(ids.begin(), ids.begin() + 1500);
    const auto losses = [&](reference::Rounding rounding) {
        const std::vector<double> nll = reference::model_nll(folder, few, 8, rounding);
        return std::vector<float>(nll.begin(), nll.end());
    };
    return difference(losses(reference::Rounding::kBf16), losses(reference::Rounding::kNone));
}

}  // namespace

TEST_CASE("golden models on the GPU") {
    for (const char* name : {"mamba2", "log_linear_mamba2"}) {
        const std::filesystem::path folder = golden_folder() / name;
        const SafetensorsFile expected = SafetensorsFile::open(folder / "expected.safetensors");
        const std::vector<std::int32_t> ids = tensor<std::int32_t>(expected, "input_ids");
        const std::vector<float> want = tensor<float>(expected, "nll");
        const std::shared_ptr<const Model> model = Model::load(folder);
        // What the project promises for fp32 and for bf16 operands.
        const Difference fp32 = difference(score_with(model, ids, 0, kFp32), want);
        const Difference bf16 = difference(score_with(model, ids, 0, kBf16), want);
        WARN(name << ": fp32 off by " << fp32.worst << ", bf16 by " << bf16.worst << ", its mean by " << bf16.mean);
        CHECK(fp32.worst <= 1e-4);
        CHECK(bf16.worst <= 0.05);
        CHECK(bf16.mean <= 5e-3);
    }
}

TEST_CASE("every family on the GPU agrees with the CPU and does not depend on passes") {
    const TemporaryModels models;
    // Four whole blocks and a tail: passes of 1 and 2 blocks, nodes of 1, 2 and 4 blocks.
    const std::int64_t tokens = 4 * kBlockTokens + 3001;
    for (const char* family : kFamilies) {
        DYNAMIC_SECTION(family) {
            const std::shared_ptr<const Model> model = Model::load(models.make_wide(family));
            const std::vector<std::int32_t> ids = random_ids(tokens, 256, 11);
            const std::vector<float> cpu = score_with(model, ids, 0, kCpu);
            const Difference rounded = rounding_difference(models.make_wide(family), ids);
            for (const Compute compute : {kFp32, kBf16}) {
                INFO(family << (compute.bf16 ? " in bf16" : " in fp32"));
                const std::vector<float> whole = score_with(model, ids, 0, compute);
                const Difference d = difference(whole, cpu);
                WARN(family << (compute.bf16 ? " in bf16" : " in fp32") << ": off by " << d.worst << ", rms " << d.rms
                            << ", mean by " << d.mean << "; rounding alone: " << rounded.worst << ", rms "
                            << rounded.rms);
                // Two fp32 sums in different orders differ as the golden ones may. In bf16 the bounds are what rounding
                // the stored values does to the double model, whose sums are exact (`rounded`): the products' own
                // operands may add half of its rms, and the worst of 13 times as many tokens is allowed to be four
                // times its worst.
                if (compute.bf16) CHECK(d.rms <= 1.5 * rounded.rms);
                CHECK(d.worst <= (compute.bf16 ? 4.0 * rounded.worst : 2e-4));
                CHECK(d.mean <= (compute.bf16 ? 5e-3 : 2e-5));
                for (const std::int64_t pass : {kBlockTokens, 2 * kBlockTokens, std::int64_t{0}}) {
                    INFO("passes of " << pass);
                    const std::vector<float> again = score_with(model, ids, pass, compute);
                    REQUIRE(std::memcmp(again.data(), whole.data(), whole.size() * sizeof(float)) == 0);
                }
                const std::filesystem::path file = models.root() / "state.safetensors";
                SelfCommunicator self;
                Gang first(model, self, 8, compute);
                first.begin_document();
                std::vector<float> joined = score(first, ids, kBlockTokens, 3 * kBlockTokens);
                first.save_state(file);
                Gang second(model, self, 8, compute);
                second.restore_state(file);
                const std::vector<float> rest = score(second, ids, 0);
                joined.insert(joined.end(), rest.begin(), rest.end());
                REQUIRE(joined.size() == whole.size());
                REQUIRE(std::memcmp(joined.data(), whole.data(), whole.size() * sizeof(float)) == 0);
            }
        }
    }
}

TEST_CASE("a new document on the GPU forgets the last one") {
    const TemporaryModels models;
    const std::shared_ptr<const Model> model = Model::load(models.make_wide("log_linear_mamba2"));
    const std::vector<std::int32_t> ids = random_ids(kBlockTokens + 77, 256, 3);
    SelfCommunicator self;
    Gang gang(model, self, 8, kBf16);
    gang.begin_document();
    const std::vector<float> first = score(gang, ids, kBlockTokens);
    for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{2}, std::int64_t{65}}) {
        gang.begin_document();
        const std::vector<std::int32_t> few(ids.begin(), ids.begin() + tokens);
        const std::vector<float> short_one = score(gang, few, 0);
        REQUIRE(static_cast<std::int64_t>(short_one.size()) == tokens - 1);
        CHECK(std::memcmp(short_one.data(), first.data(), short_one.size() * sizeof(float)) == 0);
    }
    gang.begin_document();
    const std::vector<float> again = score(gang, ids, 0);
    CHECK(std::memcmp(again.data(), first.data(), first.size() * sizeof(float)) == 0);
}
