#include "worker/training/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/hash.h"
#include "core/json.h"
#include "kernels/backward/cross_entropy.h"
#include "worker/training/item_shuffle.h"

namespace fenwick {
namespace {

void check_options(const DatasetOptions& options) {
    if (options.sequence_tokens < 1) {
        throw UsageError(fmt::format("sequence_tokens: expected at least 1, found {}", options.sequence_tokens));
    }
    if (options.batch_tokens < options.sequence_tokens) {
        throw UsageError(fmt::format("batch_tokens: expected at least sequence_tokens ({}), found {}",
                                     options.sequence_tokens, options.batch_tokens));
    }
}

}  // namespace

Dataset::Dataset(std::span<const std::filesystem::path> files, const DatasetOptions& options) : options_(options) {
    check_options(options);
    if (files.empty()) throw UsageError("training data: no token file is named");
    Hasher identity;
    identity.update_number(static_cast<std::uint64_t>(options.sequence_tokens));
    identity.update_number(static_cast<std::uint64_t>(options.batch_tokens));
    identity.update_number(options.seed);
    identity.update_number(options.shuffle ? 1 : 0);
    std::int64_t items = 0;
    for (const std::filesystem::path& path : files) {
        files_.push_back({TokenFile::open(path), documents()});
        const TokenFile& file = files_.back().file;
        if (file.tokenizer() != tokenizer()) {
            throw DataError(fmt::format("{}: field \"tokenizer\": expected {} as in {}, found {}", path.string(),
                                        in_quotes(tokenizer()), files.front().string(), in_quotes(file.tokenizer())));
        }
        identity.update(file.hash());
        for (std::int64_t i = 0; i < file.documents(); ++i) {
            const std::int64_t size = file.first_token(i + 1) - file.first_token(i);
            items += size / options.sequence_tokens + (size % options.sequence_tokens != 0 ? 1 : 0);
            item_ends_.push_back(items);
        }
    }
    if (items == 0) {
        throw DataError(fmt::format("{}{}: no tokens to train on: {} documents, all empty", files.front().string(),
                                    files.size() > 1 ? fmt::format(" and {} more", files.size() - 1) : "",
                                    documents()));
    }
    identity_ = identity.hex();
}

std::int64_t Dataset::tokens() const {
    std::int64_t sum = 0;
    for (const File& file : files_) sum += file.file.tokens();
    return sum;
}

std::int64_t Dataset::vocab_size() const {
    std::int64_t largest = 0;
    for (const File& file : files_) largest = std::max(largest, file.file.vocab_size());
    return largest;
}

Dataset::Piece Dataset::piece(std::int64_t item) const {
    // Empty documents end where the one before them ends, and are passed over.
    const std::int64_t document = std::upper_bound(item_ends_.begin(), item_ends_.end(), item) - item_ends_.begin();
    const std::int64_t first_item = document == 0 ? 0 : item_ends_[static_cast<std::size_t>(document - 1)];
    const auto next_file = std::upper_bound(files_.begin(), files_.end(), document,
                                            [](std::int64_t d, const File& file) { return d < file.first_document; });
    Piece piece;
    piece.file = &*std::prev(next_file);
    piece.file->file.check_not_cut();
    piece.document = document;
    const std::int64_t index = document - piece.file->first_document;
    piece.document_first = piece.file->file.first_token(index);
    piece.document_end = piece.file->file.first_token(index + 1);
    piece.first = piece.document_first + (item - first_item) * options_.sequence_tokens;
    piece.size = std::min(options_.sequence_tokens, piece.document_end - piece.first);
    return piece;
}

Sequence Dataset::load(std::int64_t item) const {
    const Piece part = piece(item);
    const TokenFile& file = part.file->file;
    Sequence sequence;
    sequence.item = item;
    sequence.document = part.document;
    sequence.first = part.first - part.document_first;
    sequence.tokens.resize(static_cast<std::size_t>(part.size));
    file.read(part.first, sequence.tokens);
    sequence.targets.assign(sequence.tokens.begin() + 1, sequence.tokens.end());
    std::int32_t next = kNoTarget;
    if (part.first + part.size < part.document_end) file.read(part.first + part.size, {&next, 1});
    sequence.targets.push_back(next);
    if (!file.has_mask()) return sequence;
    for (std::int64_t t = 0; t < part.size; ++t) {
        const std::int64_t target = part.first + t + 1;
        if (target < part.document_end && !file.is_target(target)) {
            sequence.targets[static_cast<std::size_t>(t)] = kNoTarget;
        }
    }
    return sequence;
}

std::vector<std::int64_t> Dataset::next_items(DataPosition& position) const {
    if (position.item == items()) position = {position.epoch + 1, 0};
    const ItemShuffle shuffle(items(), options_.seed, position.epoch);
    std::vector<std::int64_t> batch;
    std::int64_t held = 0;
    while (position.item < items()) {
        const std::int64_t item = options_.shuffle ? shuffle(position.item) : position.item;
        held += piece(item).size;
        if (held > options_.batch_tokens) break;
        batch.push_back(item);
        ++position.item;
    }
    return batch;
}

std::vector<Sequence> Dataset::next(DataPosition& position, int group, int groups) const {
    if (position.epoch < 0 || position.item < 0 || position.item > items()) {
        throw DataError(
            fmt::format("position in the data: expected an epoch from 0 on and an item in [0, {}], found {} "
                        "and {}; are these the files of the checkpoint?",
                        items(), position.epoch, position.item));
    }
    if (groups < 1 || group < 0 || group >= groups) {
        throw InternalError(fmt::format("Dataset::next: group {} of {}", group, groups));
    }
    std::vector<Sequence> batch;
    for (int g = 0; g < groups; ++g) {
        const std::vector<std::int64_t> taken = next_items(position);
        if (g != group) continue;
        for (const std::int64_t item : taken) batch.push_back(load(item));
    }
    return batch;
}

}  // namespace fenwick
