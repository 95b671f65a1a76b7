#include "worker/training/validation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/backward/cross_entropy.h"
#include "parallel/collectives.h"
#include "worker/shard_cost.h"
#include "worker/training/training_data.h"

namespace fenwick {
namespace {

constexpr std::size_t kBuckets = 64;

std::size_t bucket_of(std::int64_t position) {
    return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(position)));
}

/// Sums of losses, labels and hits of one bucket of positions.
struct Sums {
    double loss = 0.0;
    double labels = 0.0;
    double hits = 0.0;
};

MeanLoss mean(const Sums& sums) {
    MeanLoss result;
    result.labels = static_cast<std::int64_t>(sums.labels);
    if (result.labels == 0) return result;
    result.loss = sums.loss / sums.labels;
    result.accuracy = sums.hits / sums.labels;
    return result;
}

}  // namespace

Validation::Validation(std::shared_ptr<const Model> model, Communicator& world, const TrainingRanks& ranks,
                       const TrainSettings& settings, TrainingEngine& engine)
    : model_(std::move(model)),
      world_(world),
      ranks_(ranks),
      batches_(settings.validation.batches),
      data_(settings.validation.files,
            {settings.validation.sequence_tokens,
             std::max(settings.data.batch_tokens, settings.validation.sequence_tokens), 0, false}),
      engine_(engine) {
    check_vocabulary(data_, *model_, "validation.files");
}

ValidationResult Validation::run() {
    std::array<Sums, kBuckets> sums = {};
    DataPosition position;
    const double cost = level_cost(*model_);
    std::vector<float> nll;
    std::vector<std::uint8_t> most_likely;
    for (std::int64_t batch = 0; batch < batches_ && position.epoch == 0 && position.item < data_.items(); ++batch) {
        const std::vector<Sequence> sequences = data_.next(position);
        if (batch % ranks_.groups() != ranks_.group_number()) continue;
        std::vector<TrainingDocument> documents;
        std::size_t rows = 0;
        for (const Sequence& sequence : sequences) {
            documents.push_back(own_part(sequence, cost, ranks_.group()));
            rows += documents.back().targets.size();
        }
        nll.resize(rows);
        most_likely.resize(rows);
        engine_.losses(documents, {nll, most_likely});
        std::size_t row = 0;
        for (const TrainingDocument& own : documents) {
            const std::int64_t first = own.plan.shard(ranks_.group().rank()).first_token;
            for (std::size_t i = 0; i < own.targets.size(); ++i, ++row) {
                if (own.targets[i] == kNoTarget) continue;
                Sums& bucket = sums[bucket_of(first + static_cast<std::int64_t>(i))];
                bucket.loss += static_cast<double>(nll[row]);
                bucket.labels += 1.0;
                bucket.hits += most_likely[row];
            }
        }
    }
    static_assert(sizeof(sums) == 3 * kBuckets * sizeof(double));
    all_sum(world_, std::span(&sums.front().loss, 3 * kBuckets));

    ValidationResult result;
    Sums all;
    std::size_t last = 0;
    for (std::size_t b = 0; b < kBuckets; ++b) {
        all.loss += sums[b].loss;
        all.labels += sums[b].labels;
        all.hits += sums[b].hits;
        if (sums[b].labels > 0.0) last = b + 1;
    }
    result.all = mean(all);
    for (std::size_t b = 0; b < last; ++b) result.by_position.push_back(mean(sums[b]));
    return result;
}

}  // namespace fenwick
