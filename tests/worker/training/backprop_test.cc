// Batches, ranks, threads, masks: what must not change the gradients, and what must.
#include "worker/training/backprop.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "core/errors.h"
#include "parallel/sub_communicator.h"
#include "tests/worker/training/gradient_tools.h"

namespace fenwick {
namespace {

using testing::BatchResult;
using testing::Document;
using testing::kFamilies;
using testing::random_document;
using testing::run_batch;
using testing::RunOptions;

bool same_bits(const BatchResult& a, const BatchResult& b) {
    return a.nll_sum == b.nll_sum && a.labels == b.labels &&
           std::memcmp(a.gradients.data(), b.gradients.data(), a.gradients.size() * sizeof(float)) == 0;
}

void check_close(const std::shared_ptr<Model>& model, const BatchResult& got, const BatchResult& want, double bound) {
    CHECK(got.labels == want.labels);
    CHECK(got.nll_sum == Approx(want.nll_sum).epsilon(1e-6));
    std::string worst;
    const double error = testing::relative_error(model->parameters(), got.gradients, want.gradients, worst);
    INFO(worst << " differs by " << error);
    CHECK(error <= bound);
}

// The project's promise for gradients on any ranks, in fp32.
constexpr double kSame = 1e-5;

}  // namespace

TEST_CASE("gradients of several documents are the sum of each one's, whatever their lengths") {
    testing::TemporaryModels models;
    std::vector<Document> documents;
    std::uint64_t seed = 0;
    for (const std::int64_t tokens : {5, 4100, 1, 0, 70, 4096}) documents.push_back(random_document(tokens, ++seed));
    for (const char* family : kFamilies) {
        INFO(family);
        const std::shared_ptr<Model> model = Model::load_for_training(testing::make_smooth_tiny(models, family));
        BatchResult sum;
        for (const Document& document : documents) {
            const BatchResult alone = run_batch(model, {document});
            sum.gradients.resize(alone.gradients.size());
            sum.nll_sum += alone.nll_sum;
            sum.labels += alone.labels;
            for (std::size_t i = 0; i < sum.gradients.size(); ++i) sum.gradients[i] += alone.gradients[i];
        }
        CHECK(sum.labels == 4 + 4099 + 69 + 4095);
        const BatchResult together = run_batch(model, documents);
        check_close(model, together, sum, kSame);
        // And not by chance: another order of the tokens is another gradient.
        std::reverse(documents[1].ids.begin(), documents[1].ids.end());
        std::string worst;
        CHECK(testing::relative_error(model->parameters(), run_batch(model, documents).gradients, sum.gradients,
                                      worst) > 1e-2);
        std::reverse(documents[1].ids.begin(), documents[1].ids.end());
    }
}

// Shards shorter than the convolution (two tokens on the last rank), more ranks than blocks, documents that lie on one
// rank; for one family also a block for each of eight ranks, twice: the same bits.
TEST_CASE("gradients over any ranks are one rank's") {
    testing::TemporaryModels models;
    std::vector<Document> documents;
    std::uint64_t seed = 20;
    for (const std::int64_t tokens : {kBlockTokens + 2, std::int64_t{3}, 2 * kBlockTokens + 1}) {
        documents.push_back(random_document(tokens, ++seed));
    }
    const auto check_family = [&](const std::string& family, const std::vector<int>& worlds) {
        const std::shared_ptr<Model> model = Model::load_for_training(testing::make_smooth_tiny(models, family));
        const BatchResult want = run_batch(model, documents);
        for (const int ranks : worlds) {
            INFO(family << ", ranks " << ranks);
            RunOptions options;
            options.ranks = ranks;
            const BatchResult got = run_batch(model, documents, options);
            check_close(model, got, want, kSame);
            if (worlds.size() == 1) CHECK(same_bits(got, run_batch(model, documents, options)));
        }
    };
    for (const char* family : kFamilies) check_family(family, {2, 3, 5, 8});
    documents = {random_document(7 * kBlockTokens + 1, ++seed)};
    check_family("h_gated_deltanet", {8});
}

TEST_CASE("groups of a world work on documents of their own") {
    testing::TemporaryModels models;
    const std::shared_ptr<Model> model = Model::load_for_training(testing::make_tiny(models, "h_gated_deltanet"));
    const std::vector<Document> documents = {random_document(kBlockTokens + 3, 31),
                                             random_document(2 * kBlockTokens, 32)};
    const BatchResult want = run_batch(model, documents);
    std::vector<Gradients> of_rank;
    of_rank.reserve(4);
    const std::vector<Parameter> parameters = model->parameters();
    for (int rank = 0; rank < 4; ++rank) of_rank.emplace_back(parameters);
    std::vector<StepLoss> losses(4);
    run_thread_ranks(4, [&](Communicator& world) {
        const int first = world.rank() / 2 * 2;
        SubCommunicator group(world, ranks_in_steps(first, 2));
        Backprop backprop(model, group, 1);
        const auto rank = static_cast<std::size_t>(world.rank());
        losses[rank] = backprop.run(testing::part_of({documents[static_cast<std::size_t>(first / 2)]}, group.rank(), 2),
                                    1.0F, of_rank[rank]);
    });
    BatchResult got;
    got.gradients.resize(want.gradients.size());
    for (std::size_t rank = 0; rank < 4; ++rank) {
        got.nll_sum += losses[rank].nll_sum;
        got.labels += losses[rank].labels;
        for (std::size_t i = 0; i < got.gradients.size(); ++i) got.gradients[i] += of_rank[rank].all()[i];
    }
    check_close(model, got, want, kSame);
}

TEST_CASE("threads and recomputing change no bit of the gradients") {
    testing::TemporaryModels models;
    const std::vector<Document> documents = {random_document(kBlockTokens + 70, 41), random_document(130, 42)};
    for (const char* family : kFamilies) {
        const std::shared_ptr<Model> model = Model::load_for_training(testing::make_tiny(models, family));
        INFO(family);
        RunOptions options;
        options.ranks = model->layers()[0].mixer->shape().log_linear() ? 2 : 1;
        const BatchResult want = run_batch(model, documents, options);
        options.threads = 2;
        CHECK(same_bits(run_batch(model, documents, options), want));
        options.threads = 3;
        options.backprop.recompute = false;
        CHECK(same_bits(run_batch(model, documents, options), want));
    }
}

TEST_CASE("the loss of a batch is prefill's") {
    testing::TemporaryModels models;
    const std::vector<Document> documents = {random_document(4500, 51), random_document(77, 52)};
    for (const char* family : kFamilies) {
        INFO(family);
        const std::filesystem::path folder = testing::make_tiny(models, family);
        const std::shared_ptr<Model> model = Model::load_for_training(folder);
        double want = 0.0;
        for (const Document& document : documents) {
            for (const float nll : testing::score_on(model, document.ids, 1, 0)) want += static_cast<double>(nll);
        }
        RunOptions options;
        options.backprop.z_loss = 0.1F;  // not part of the loss that is told
        CHECK(run_batch(model, documents, options).nll_sum == Approx(want).epsilon(1e-6));
    }
}

TEST_CASE("gradients are added to, scaled, and the same in a second run") {
    testing::TemporaryModels models;
    const std::shared_ptr<Model> model = Model::load_for_training(testing::make_tiny(models, "log_linear_mamba2"));
    const std::vector<Document> documents = {random_document(300, 61)};
    const BatchResult once = run_batch(model, documents);
    RunOptions options;
    options.scale = -0.5F;  // a power of two: exact
    const BatchResult scaled = run_batch(model, documents, options);
    SelfCommunicator self;
    Backprop backprop(model, self, 1);
    Gradients gradients(model->parameters());
    backprop.run(testing::part_of(documents, 0, 1), 1.0F, gradients);
    for (std::size_t i = 0; i < once.gradients.size(); ++i) {
        REQUIRE(gradients.all()[i] == once.gradients[i]);
        REQUIRE(scaled.gradients[i] == -0.5F * once.gradients[i]);
    }
    // A shorter batch in between leaves nothing behind.
    Gradients other(model->parameters());
    backprop.run(testing::part_of({random_document(9, 62)}, 0, 1), 1.0F, other);
    backprop.run(testing::part_of(documents, 0, 1), -1.0F, gradients);
    double left = 0.0;
    double whole = 0.0;
    for (std::size_t i = 0; i < once.gradients.size(); ++i) {
        left += std::fabs(static_cast<double>(gradients.all()[i]));
        whole += std::fabs(static_cast<double>(once.gradients[i]));
    }
    CHECK(left <= 1e-6 * whole);
}

// CASES H1.
TEST_CASE("rows without a target have no part, and a batch without any has gradients of exactly 0") {
    testing::TemporaryModels models;
    for (const char* family : kFamilies) {
        INFO(family);
        const std::shared_ptr<Model> model = Model::load_for_training(testing::make_tiny(models, family));
        const auto all_zero = [](const BatchResult& result) {
            return result.nll_sum == 0.0 && result.labels == 0 &&
                   std::all_of(result.gradients.begin(), result.gradients.end(), [](float g) { return g == 0.0F; });
        };
        Document masked = random_document(kBlockTokens + 200, 71);
        std::fill(masked.targets.begin(), masked.targets.end(), kNoTarget);
        RunOptions two;
        two.ranks = 2;
        CHECK(all_zero(run_batch(model, {masked})));
        CHECK(all_zero(run_batch(model, {masked}, two)));
        CHECK(all_zero(run_batch(model, {random_document(1, 72)})));
        CHECK(all_zero(run_batch(model, {random_document(0, 73)}, two)));
        CHECK(all_zero(run_batch(model, {}, two)));

        // Rank 0's part is masked, rank 1 has five labels.
        for (std::size_t t = kBlockTokens + 100; t < kBlockTokens + 105; ++t) masked.targets[t] = masked.ids[t + 1];
        const BatchResult one = run_batch(model, {masked});
        CHECK(one.labels == 5);
        check_close(model, run_batch(model, {masked}, two), one, kSame);
        // What lies behind the last label changes nothing.
        Document cut = masked;
        cut.ids.resize(kBlockTokens + 105);
        cut.targets.resize(kBlockTokens + 105);
        check_close(model, run_batch(model, {cut}), one, kSame);
    }
}

TEST_CASE("documents that do not fit are refused") {
    testing::TemporaryModels models;
    const std::shared_ptr<Model> model = Model::load_for_training(testing::make_tiny(models, "mamba2"));
    SelfCommunicator self;
    Backprop backprop(model, self, 1);
    Gradients gradients(model->parameters());
    const std::vector<TrainingDocument> good = testing::part_of({random_document(10, 81)}, 0, 1);
    const auto refused = [&](const std::function<void(TrainingDocument&)>& spoil) {
        std::vector<TrainingDocument> bad = good;
        spoil(bad[0]);
        CHECK_THROWS_AS(backprop.run(bad, 1.0F, gradients), InternalError);
    };
    refused([](TrainingDocument& document) { document.tokens.pop_back(); });
    refused([](TrainingDocument& document) { document.targets.push_back(1); });
    refused([](TrainingDocument& document) { document.plan = make_shard_plan(0, 10, 2); });
    refused([](TrainingDocument& document) { document.plan = make_shard_plan(kBlockTokens, 10, 1); });
    refused([](TrainingDocument& document) { document.tokens[3] = testing::kTinyVocab; });
    refused([](TrainingDocument& document) { document.targets[3] = testing::kTinyVocab; });
    CHECK_THROWS_AS(backprop.run(good, INFINITY, gradients), InternalError);
    CHECK(backprop.run(good, 1.0F, gradients).labels == 9);
}

}  // namespace fenwick
