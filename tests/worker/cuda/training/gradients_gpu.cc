// Gradients of whole models on the GPU: the CPU's, whatever is packed together, kept, or spread over ranks.
#include <cstring>

#include "tests/worker/cuda/training/gpu_training.h"

using namespace fenwick;
using namespace fenwick::testing;
using cuda::Operand;

namespace {

// Shorter than the convolution, around a chunk, and two whole blocks with a tail that none of them fills.
const std::vector<std::int64_t> kLengths = {1, 2, 65, 64, 63, 700, 3, 130};

bool same_bits(const Pass& a, const Pass& b) {
    return a.nll == b.nll && a.gradients.size() == b.gradients.size() &&
           std::memcmp(a.gradients.data(), b.gradients.data(), a.gradients.size() * sizeof(double)) == 0;
}

/// How far gradients may be apart: `all` and `worst` of a GradientError.
struct Tolerance {
    double all = 0.0;
    double worst = 0.0;
};

/// Layers multiply what rounding does (norms of small rows), so the bound is made of what rounding the parameters
/// alone does to the CPU's gradients, by 2^-24 or bf16's 2^-9: stored activations are rounded as well, some
/// 30 times a layer, independently, each with no more effect than that: sqrt(30). Never below 1e-5 and 1e-4: the CPU's
/// own sums in fp32.
Tolerance tolerance_of(const std::filesystem::path& folder, const Documents& documents, Operand operand) {
    const double rounding = std::ldexp(1.0, operand == Operand::kBf16 ? -9 : -24);
    const Pass exact = cpu_pass(folder, documents);
    const GradientError moved = gradient_error(folder, cpu_pass(folder, documents, 0.0F, rounding), exact);
    return {std::max(1e-5, 5.5 * moved.all), std::max(1e-4, 5.5 * moved.worst)};
}

void check_against_cpu(const std::filesystem::path& folder, const Documents& documents, Operand operand) {
    const bool bf16 = operand == Operand::kBf16;
    const Pass want = cpu_pass(folder, documents, 1e-4F);
    const Pass got = gpu_pass(folder, documents, operand, 1, {1e-4F, 0});
    const GradientError error = gradient_error(folder, got, want);
    const Tolerance tolerance = tolerance_of(folder, documents, operand);
    WARN(folder.filename().string() << (bf16 ? " in bf16" : " in fp32") << ": loss off by "
                                    << std::fabs(got.nll - want.nll) / want.nll << ", gradients by " << error.all
                                    << ", worst " << error.name << " by " << error.worst << "; tolerance "
                                    << tolerance.all << " and " << tolerance.worst);
    CHECK(std::fabs(got.nll - want.nll) <= (bf16 ? 5e-3 : 1e-6) * want.nll);
    CHECK(error.all <= tolerance.all);
    CHECK(error.worst <= tolerance.worst);
}

void check_ranks(const char* family, const std::vector<std::int64_t>& lengths, const std::vector<int>& worlds) {
    const TemporaryModels models;
    const std::filesystem::path folder = make_smooth(models, family);
    const Documents documents = random_documents(lengths);
    const Pass want = gpu_pass(folder, documents, Operand::kFp32);
    const Tolerance tolerance = tolerance_of(folder, documents, Operand::kFp32);
    for (const int ranks : worlds) {
        const Pass got = gpu_pass(folder, documents, Operand::kFp32, ranks, {0.0F, 1});
        const GradientError error = gradient_error(folder, got, want);
        WARN(family << ", " << ranks << " ranks: gradients off by " << error.all << ", worst " << error.name << " by "
                    << error.worst << "; tolerance " << tolerance.all << " and " << tolerance.worst);
        CHECK(std::fabs(got.nll - want.nll) <= 1e-6 * want.nll);
        CHECK(error.all <= tolerance.all);
        CHECK(error.worst <= tolerance.worst);
    }
}

}  // namespace

TEST_CASE("gradients of every family on the GPU agree with the CPU's") {
    const TemporaryModels models;
    const Documents documents = random_documents(kLengths);
    for (const char* family : kFamilies) {
        DYNAMIC_SECTION(family) {
            check_against_cpu(make_smooth(models, family), documents, Operand::kFp32);
            check_against_cpu(make_smooth(models, family), documents, Operand::kBf16);
        }
    }
}

TEST_CASE("gradients by the GPU's matrix units agree with the CPU's") {
    const TemporaryModels models;
    const Documents documents = random_documents(kLengths);
    for (const char* family : kFamilies) {
        DYNAMIC_SECTION(family) {
            check_against_cpu(make_smooth(models, family, true), documents, Operand::kFp32);
            check_against_cpu(make_smooth(models, family, true), documents, Operand::kBf16);
        }
    }
}

TEST_CASE("gradients of documents of many blocks on the GPU agree with the CPU's") {
    const TemporaryModels models;
    const Documents documents = random_documents({2 * kBlockTokens + 77, 130, kBlockTokens});
    for (const char* family : kFamilies) {
        DYNAMIC_SECTION(family) {
            check_against_cpu(make_smooth(models, family), documents, Operand::kFp32);
            check_against_cpu(make_smooth(models, family, true), documents, Operand::kBf16);
        }
    }
}

TEST_CASE("packed documents on the GPU have the gradients that they have alone") {
    const TemporaryModels models;
    for (const char* family : kFamilies) {
        const std::filesystem::path folder = make_smooth(models, family);
        const Documents documents = random_documents({65, 3, 200, 1, 64});
        const Pass together = gpu_pass(folder, documents, Operand::kFp32);
        Pass alone;
        alone.gradients.resize(together.gradients.size(), 0.0);
        const auto all_labels = static_cast<double>(labels_of(documents));
        for (const std::vector<std::int32_t>& document : documents) {
            const auto labels = static_cast<double>(labels_of({document}));
            if (labels == 0.0) continue;
            const Pass one = gpu_pass(folder, {document}, Operand::kFp32);
            alone.nll += one.nll;
            for (std::size_t i = 0; i < one.gradients.size(); ++i) {
                alone.gradients[i] += one.gradients[i] * labels / all_labels;
            }
        }
        const GradientError error = gradient_error(folder, together, alone);
        const Tolerance tolerance = tolerance_of(folder, documents, Operand::kFp32);
        WARN(family << ", packed: gradients off by " << error.all << ", worst " << error.name << " by " << error.worst);
        CHECK(std::fabs(together.nll - alone.nll) <= 1e-6 * alone.nll);
        CHECK(error.all <= tolerance.all);
        CHECK(error.worst <= tolerance.worst);
    }
}

TEST_CASE("gradients on the GPU have the same bits again, and however few inputs are kept") {
    const TemporaryModels models;
    RandomModelOptions options;
    options.family = "log_linear_mamba2";
    options.output = models.root() / "deep";
    options.hidden_size = 32;
    options.layers = 5;
    options.heads = 2;
    options.head_dim = 16;
    options.state_size = 16;
    options.initializer_range = 0.15;
    write_random_model(options);
    const Documents documents = random_documents({90, 33});
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        const Pass want = gpu_pass(options.output, documents, operand);
        CHECK(same_bits(gpu_pass(options.output, documents, operand), want));
        for (const std::int64_t places : {1, 2, 3}) {
            INFO(places << " places");
            CHECK(same_bits(gpu_pass(options.output, documents, operand, 1, {0.0F, places}), want));
        }
    }
}

TEST_CASE("ranks on the GPU have the gradients of one: a tail shorter than the convolution") {
    // The tail lies on a rank of its own, the short documents on one rank each, and a third rank has little or nothing.
    for (const char* family : kFamilies) {
        DYNAMIC_SECTION(family) {
            check_ranks(family, {kBlockTokens + 2, 100, 7}, {2, 3});
        }
    }
}

TEST_CASE("ranks on the GPU have the gradients of one: several rounds of exchange") {
    for (const char* family : kFamilies) {
        DYNAMIC_SECTION(family) {
            check_ranks(family, {7 * kBlockTokens + 2, 3000}, {2, 3, 5, 8});
        }
    }
}
