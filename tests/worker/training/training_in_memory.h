// What training has in memory, small and whole, for tests of its checkpoints.
#pragma once

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "parallel/collectives.h"
#include "parallel/thread_world.h"
#include "worker/training/training_checkpoint.h"

namespace fenwick::testing {

/// Ranks write slices of it.
struct Training {
    explicit Training(std::int64_t step, std::vector<ParameterPlace> table = {{"a.weight", {3, 7}, 0},
                                                                              {"a.bias", {7}, 21},
                                                                              {"b.A_log", {1}, 28},
                                                                              {"empty", {0, 4}, 29},
                                                                              {"b.weight", {2, 1, 4}, 29}}) {
        head.step = step;
        head.table = std::move(table);
        head.model_config = R"({"model_type": "mamba2", "limit": Infinity})";
        head.state = {{"tokens", 1000 * step}, {"loss", 1.0 / 3.0}, {"data", {{"epoch", 1}, {"item", step}}}};
        std::mt19937_64 random(static_cast<std::uint64_t>(step));
        std::normal_distribution<float> draw;
        for (auto& vector : vectors) {
            vector.resize(static_cast<std::size_t>(total_elements(head.table)));
            for (float& value : vector) value = draw(random);
        }
    }
    [[nodiscard]] std::int64_t total() const { return std::ssize(vectors[0]); }
    [[nodiscard]] CheckpointSlice slice(int world, int rank) const {
        const Slice own = slice_of(total(), world, rank);
        const auto part = [&](const std::vector<float>& all) {
            return std::span(all).subspan(static_cast<std::size_t>(own.first), static_cast<std::size_t>(own.size));
        };
        return {part(vectors[0]), part(vectors[1]), part(vectors[2])};
    }
    std::filesystem::path save(const std::filesystem::path& folder, int ranks = 1, int keep = 0) const {
        run_thread_ranks(ranks, [&](Communicator& world) {
            const std::filesystem::path path =
                write_training_checkpoint(world, folder, head, slice(world.size(), world.rank()), keep);
            if (path != folder / step_name(head.step)) throw InternalError("other path");
        });
        return folder / step_name(head.step);
    }

    CheckpointHead head;
    std::array<std::vector<float>, 3> vectors;
};

/// What `ranks` ranks read is `expected`.
inline void require_same(const TrainingCheckpoint& found, const Training& expected, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
        const Slice slice = slice_of(expected.total(), ranks, rank);
        std::array<std::vector<float>, 3> read;
        for (auto& vector : read) vector.resize(static_cast<std::size_t>(slice.size));
        found.read(slice.first, read[0], read[1], read[2]);
        for (std::size_t i = 0; i < read.size(); ++i) {
            const auto from = expected.vectors[i].begin() + slice.first;
            REQUIRE(std::equal(read[i].begin(), read[i].end(), from));
        }
    }
}

/// Of what lies in a folder, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace fenwick::testing
