#include "worker/training/validation.h"

#include <algorithm>
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

MeanLoss mean(double sum, double labels) {
    MeanLoss result;
    result.labels = static_cast<std::int64_t>(labels);
    if (result.labels > 0) result.loss = sum / labels;
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
    // Sums of losses, then numbers of labels, by bucket.
    std::vector<double> sums(2 * kBuckets, 0.0);
    DataPosition position;
    const double cost = level_cost(*model_);
    std::vector<float> nll;
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
        engine_.losses(documents, nll);
        auto loss = nll.cbegin();
        for (const TrainingDocument& own : documents) {
            const std::int64_t first = own.plan.shard(ranks_.group().rank()).first_token;
            for (std::size_t i = 0; i < own.targets.size(); ++i, ++loss) {
                if (own.targets[i] == kNoTarget) continue;
                const std::size_t bucket = bucket_of(first + static_cast<std::int64_t>(i));
                sums[bucket] += static_cast<double>(*loss);
                sums[kBuckets + bucket] += 1.0;
            }
        }
    }
    all_sum(world_, sums);

    ValidationResult result;
    double sum = 0.0;
    double labels = 0.0;
    std::size_t last = 0;
    for (std::size_t b = 0; b < kBuckets; ++b) {
        sum += sums[b];
        labels += sums[kBuckets + b];
        if (sums[kBuckets + b] > 0.0) last = b + 1;
    }
    result.all = mean(sum, labels);
    for (std::size_t b = 0; b < last; ++b) result.by_position.push_back(mean(sums[b], sums[kBuckets + b]));
    return result;
}

}  // namespace fenwick
