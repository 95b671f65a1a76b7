// The order of training data: every token once an epoch, the same after a stop, the same for any number of groups.
#include "worker/training/dataset.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "core/errors.h"
#include "kernels/backward/cross_entropy.h"
#include "tests/core/temporary_folder.h"
#include "worker/training/item_shuffle.h"

namespace fenwick {
namespace {

using testing::message_of;
using testing::TemporaryFolder;
using Documents = std::vector<std::vector<std::int32_t>>;

constexpr std::int64_t kSequence = 16;
constexpr std::int64_t kBatch = 50;  // no multiple of the sequence: batches of different fill
constexpr std::int64_t kVocab = 100000;

// Lengths around the sequence and its multiples, empty documents among them. Tokens number themselves over all
// documents, so that a token that is lost or comes twice has a name.
Documents numbered_documents(std::int32_t first) {
    Documents documents;
    for (const int size : {0, 1, 2, 15, 16, 17, 0, 0, 32, 33, 100, 5, 48, 49, 0}) {
        std::vector<std::int32_t> ids(static_cast<std::size_t>(size));
        for (std::int32_t& id : ids) id = first++;
        documents.push_back(ids);
    }
    return documents;
}

bool is_masked_out(std::int32_t token) {
    return token % 3 == 1;
}

std::filesystem::path write(const std::filesystem::path& path, const Documents& documents, bool mask = false,
                            const std::string& tokenizer = "bytes") {
    TokenFileWriter writer(path, {.vocab_size = kVocab, .tokenizer = tokenizer, .with_mask = mask});
    for (const auto& ids : documents) {
        std::vector<bool> targets;
        for (const std::int32_t id : ids) {
            if (mask) targets.push_back(!is_masked_out(id));
        }
        writer.append(ids, targets);
        writer.end_document();
    }
    (void)writer.commit();
    return path;
}

struct Data {
    explicit Data(bool mask = false) {
        documents = numbered_documents(0);
        const Documents more = numbered_documents(5000);
        files = {write(folder / "a", documents, mask), write(folder / "b", more, mask)};
        documents.insert(documents.end(), more.begin(), more.end());
    }
    [[nodiscard]] Dataset open(DatasetOptions options = {kSequence, kBatch, 7}) const { return {files, options}; }

    TemporaryFolder folder;
    Documents documents;
    std::vector<std::filesystem::path> files;
};

std::vector<std::int64_t> items_of(const std::vector<Sequence>& batch) {
    std::vector<std::int64_t> items;
    for (const Sequence& sequence : batch) items.push_back(sequence.item);
    return items;
}

// The micro-batches of the first `epochs` epochs.
std::vector<std::vector<std::int64_t>> batches_of(const Dataset& data, std::int64_t epochs) {
    std::vector<std::vector<std::int64_t>> batches;
    for (DataPosition position; position.epoch < epochs && !(position == DataPosition{epochs - 1, data.items()});) {
        batches.push_back(items_of(data.next(position)));
    }
    return batches;
}

}  // namespace

TEST_CASE("shuffled numbers are each there once") {
    for (const std::int64_t items : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097}) {
        for (const std::int64_t epoch : {0, 1}) {
            const ItemShuffle shuffle(items, 3, epoch);
            std::vector<bool> seen(static_cast<std::size_t>(items), false);
            for (std::int64_t i = 0; i < items; ++i) {
                const std::int64_t at = shuffle(i);
                REQUIRE(at >= 0);
                REQUIRE(at < items);
                REQUIRE_FALSE(seen[static_cast<std::size_t>(at)]);
                seen[static_cast<std::size_t>(at)] = true;
            }
        }
    }
    const ItemShuffle huge(std::int64_t{1} << 62, 1, 1);
    CHECK(huge((std::int64_t{1} << 62) - 1) != huge(0));
    CHECK_THROWS_AS(ItemShuffle(0, 1, 0), InternalError);
}

// Of n uniform numbers in [0, n) the rank correlation with 0 .. n - 1 has a standard deviation of 1 / sqrt(n - 1). Six
// of them happen by chance in one of 10^9 trials.
TEST_CASE("shuffles look like chance and differ by seed and epoch") {
    constexpr std::int64_t kItems = 10007;
    const double bound = 6 / std::sqrt(static_cast<double>(kItems - 1));
    const auto correlation = [&](const auto& a, const auto& b) {
        const double mean = (kItems - 1) / 2.0;
        const double variance = (static_cast<double>(kItems) * kItems - 1) / 12.0;
        double sum = 0;
        for (std::int64_t i = 0; i < kItems; ++i) {
            sum += (static_cast<double>(a(i)) - mean) * (static_cast<double>(b(i)) - mean);
        }
        return sum / (variance * kItems);
    };
    const auto same = [](std::int64_t i) { return i; };
    const auto next = [](std::int64_t i) { return (i + 1) % kItems; };
    for (const std::uint64_t seed : {0ULL, 1ULL, 2ULL, 0x123456789ULL}) {
        INFO("seed " << seed);
        const ItemShuffle shuffle(kItems, seed, 0);
        CHECK(std::abs(correlation(shuffle, same)) < bound);
        CHECK(std::abs(correlation(shuffle, [&](std::int64_t i) { return shuffle(next(i)); })) < bound);
        CHECK(std::abs(correlation(shuffle, ItemShuffle(kItems, seed, 1))) < bound);
        CHECK(std::abs(correlation(shuffle, ItemShuffle(kItems, seed + 1, 0))) < bound);
    }
}

TEST_CASE("every token comes once an epoch, with its successor for target") {
    const Data source;
    for (const bool shuffle : {true, false}) {
        const Dataset data = source.open({kSequence, kBatch, 7, shuffle});
        DataPosition position;
        for (const std::int64_t epoch : {0, 1, 2}) {
            std::map<std::int32_t, std::int32_t> targets;
            std::int64_t sequences = 0;
            while (position.epoch == epoch && position.item < data.items()) {
                const std::vector<Sequence> batch = data.next(position);
                REQUIRE_FALSE(batch.empty());
                std::int64_t held = 0;
                for (const Sequence& sequence : batch) {
                    ++sequences;
                    held += std::ssize(sequence.tokens);
                    CHECK(std::ssize(sequence.tokens) <= kSequence);
                    REQUIRE(sequence.targets.size() == sequence.tokens.size());
                    const auto& document = source.documents[static_cast<std::size_t>(sequence.document)];
                    for (std::size_t t = 0; t < sequence.tokens.size(); ++t) {
                        const std::size_t place = static_cast<std::size_t>(sequence.first) + t;
                        REQUIRE(sequence.tokens[t] == document.at(place));
                        CHECK(targets.emplace(sequence.tokens[t], sequence.targets[t]).second);
                        CHECK(sequence.targets[t] == (place + 1 < document.size() ? document[place + 1] : kNoTarget));
                    }
                }
                CHECK(held <= kBatch);
            }
            CHECK(sequences == data.items());
            CHECK(std::ssize(targets) == data.tokens());
            if (position.item == data.items()) position = {epoch + 1, 0};
        }
    }
    CHECK(source.open().documents() == 30);
    CHECK(source.open().tokens() == 2 * 318);
    CHECK(source.open().items() == 2 * (1 + 1 + 1 + 1 + 2 + 2 + 3 + 7 + 1 + 3 + 4));
}

TEST_CASE("masks leave only marked tokens as targets") {
    const Data source(true);
    const Dataset data = source.open();
    std::int64_t labels = 0;
    for (DataPosition position; position.epoch == 0 && position.item < data.items();) {
        for (const Sequence& sequence : data.next(position)) {
            const auto& document = source.documents[static_cast<std::size_t>(sequence.document)];
            for (std::size_t t = 0; t < sequence.tokens.size(); ++t) {
                const std::size_t place = static_cast<std::size_t>(sequence.first) + t + 1;
                const bool wanted = place < document.size() && !is_masked_out(document[place]);
                CHECK(sequence.targets[t] == (wanted ? document[place] : kNoTarget));
                labels += sequence.targets[t] != kNoTarget ? 1 : 0;
            }
        }
    }
    std::int64_t expected = 0;
    for (const auto& document : source.documents) {
        for (std::size_t i = 1; i < document.size(); ++i) expected += is_masked_out(document[i]) ? 0 : 1;
    }
    CHECK(labels == expected);
}

TEST_CASE("the order goes on from any position, and differs by epoch and seed") {
    const Data source;
    const Dataset data = source.open();
    const auto straight = batches_of(data, 3);
    std::size_t next = 0;
    DataPosition position;
    while (next < straight.size()) {
        const Dataset reopened = source.open();  // nothing but the position is carried over
        DataPosition copy{position.epoch, position.item};
        CHECK(items_of(reopened.next(copy)) == straight[next++]);
        position = copy;
    }
    const auto first_epoch = batches_of(data, 1);
    const std::vector<std::vector<std::int64_t>> second(straight.begin() + std::ssize(first_epoch),
                                                        straight.begin() + 2 * std::ssize(first_epoch));
    CHECK(first_epoch != second);
    CHECK(first_epoch != batches_of(source.open({kSequence, kBatch, 8}), 1));
}

TEST_CASE("groups share the order of one group") {
    const Data source;
    const Dataset data = source.open();
    const auto order = batches_of(data, 5);
    for (const int groups : {1, 2, 3, 7}) {
        INFO(groups << " groups");
        std::vector<DataPosition> positions(static_cast<std::size_t>(groups));
        std::size_t next = 0;
        while (next + static_cast<std::size_t>(groups) <= order.size()) {
            for (int g = 0; g < groups; ++g) {
                const auto batch = data.next(positions[static_cast<std::size_t>(g)], g, groups);
                CHECK(items_of(batch) == order[next + static_cast<std::size_t>(g)]);
            }
            for (const DataPosition& position : positions) CHECK(position == positions.front());
            next += static_cast<std::size_t>(groups);
        }
    }
    // Halfway from 2 groups to 3: nothing is repeated, nothing is left out.
    DataPosition position;
    for (std::size_t i = 0; i < 4; i += 2) (void)data.next(position, 0, 2);
    for (int g = 0; g < 3; ++g) {
        DataPosition own = position;
        CHECK(items_of(data.next(own, g, 3)) == order[4 + static_cast<std::size_t>(g)]);
    }
}

TEST_CASE("data that cannot be trained on is refused by name") {
    const TemporaryFolder folder;
    const std::vector<std::filesystem::path> good = {write(folder / "a", {{1, 2, 3}})};
    CHECK_THROWS_AS(Dataset(good, {0, 10, 1}), UsageError);
    CHECK(message_of<UsageError>([&] {
              (void)Dataset(good, {8, 7, 1});
          }).find("batch_tokens: expected at least") != std::string::npos);
    CHECK_THROWS_AS(Dataset({}, {8, 8, 1}), UsageError);
    // CASES H1 (iv).
    const std::vector<std::filesystem::path> empty = {write(folder / "empty", {{}, {}})};
    const std::string message = message_of<DataError>([&] { (void)Dataset(empty, {8, 8, 1}); });
    CHECK(message.find("empty: no tokens to train on: 2 documents") != std::string::npos);
    const std::vector<std::filesystem::path> mixed = {good.front(), write(folder / "b", {{1}}, false, "other")};
    CHECK(message_of<DataError>([&] {
              (void)Dataset(mixed, {8, 8, 1});
          }).find("field \"tokenizer\"") != std::string::npos);
    const Dataset data(good, {8, 8, 1});
    DataPosition past{0, 2};
    CHECK_THROWS_AS(data.next(past), DataError);
    // What the order depends on is in the identity.
    CHECK(data.identity() == Dataset(good, {8, 8, 1}).identity());
    CHECK(data.identity() != Dataset(good, {8, 8, 2}).identity());
    CHECK(data.identity() != Dataset(good, {7, 8, 1}).identity());
    CHECK(data.identity() != Dataset(good, {8, 9, 1}).identity());
    CHECK(data.identity() != Dataset(good, {8, 8, 1, false}).identity());
    const std::vector<std::filesystem::path> other = {write(folder / "c", {{1, 2, 4}})};
    CHECK(data.identity() != Dataset(other, {8, 8, 1}).identity());
}

TEST_CASE("a data file that is cut while it is in use is refused by name") {
    const Data files(true);
    const Dataset data = files.open();
    DataPosition position;
    REQUIRE_FALSE(data.next(position).empty());
    // The table of documents lies at the end of the file: already to choose the next sequences would touch what is
    // gone.
    std::filesystem::resize_file(files.files[0], 0);
    std::filesystem::resize_file(files.files[1], 0);
    const std::string message = message_of<DataError>([&] { (void)data.next(position); });
    CHECK(message.find(files.folder.path().string()) != std::string::npos);
    CHECK(message.find("bytes when opened, 0 now") != std::string::npos);
}

}  // namespace fenwick
