// Writing checkpoints: `write_training_checkpoint` and `reshard_checkpoint` of training_checkpoint.h.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/errors.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/safetensors_writer.h"
#include "parallel/collectives.h"
#include "worker/training/training_checkpoint.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

/// What a rank says of its shard; travels as bytes.
struct ShardReport {
    std::int64_t bytes = 0;
    std::array<char, 32> hash{};
    std::array<char, 984> error{};  ///< ends with a zero; empty: all is well
};
static_assert(sizeof(ShardReport) == 1024);

void set_error(ShardReport& report, const std::exception& error) {
    const std::string_view what = *error.what() == '\0' ? "unknown error" : error.what();
    const std::size_t size = std::min(what.size(), report.error.size() - 1);
    std::copy_n(what.begin(), size, report.error.begin());
}

CheckpointShard write_shard(const fs::path& folder, Slice slice, int rank, int world, const CheckpointSlice& own) {
    const std::string name = shard_name(rank, world);
    SafetensorsWriter writer;
    writer.add("values", {slice.size}, own.values);
    writer.add("exp_avg", {slice.size}, own.exp_avg);
    writer.add("exp_avg_sq", {slice.size}, own.exp_avg_sq);
    writer.write(folder / name);
    const MappedFile file = MappedFile::open(folder / name);
    return {name, slice.first, slice.size, file.size(), hash_of(file)};
}

/// All ranks' reports on root, in rank order; empty elsewhere.
std::vector<ShardReport> gather_reports(Communicator& world, const ShardReport& own) {
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()), sizeof(ShardReport));
    std::vector<ShardReport> all(world.rank() == 0 ? sizes.size() : 0);
    gather_to_root(world, std::as_bytes(std::span(&own, 1)), sizes, std::as_writable_bytes(std::span(all)));
    return all;
}

/// Throws on every rank when root's `verdict` is an error.
void agree(Communicator& world, ShardReport& verdict) {
    broadcast(world, std::as_writable_bytes(std::span(&verdict, 1)));
    if (verdict.error.front() != '\0') throw UnavailableError(verdict.error.data());
}

/// Root, once every rank has reported: checks that all shards are there and gives the folder its name.
void commit(const fs::path& folder, const CheckpointHead& head, std::span<const ShardReport> reports) {
    const fs::path partial = partial_path(folder, head.step);
    const std::int64_t total = total_elements(head.table);
    const int world = static_cast<int>(reports.size());
    std::vector<CheckpointShard> shards;
    for (int rank = 0; rank < world; ++rank) {
        const ShardReport& report = reports[static_cast<std::size_t>(rank)];
        if (report.error.front() != '\0') {
            throw UnavailableError(fmt::format("rank {} of {}: {}", rank, world, report.error.data()));
        }
        const Slice slice = slice_of(total, world, rank);
        CheckpointShard shard{shard_name(rank, world), slice.first, slice.size, report.bytes,
                              std::string(report.hash.data(), report.hash.size())};
        std::error_code error;
        if (fs::file_size(partial / shard.file, error) != static_cast<std::uintmax_t>(shard.bytes)) {
            throw UnavailableError(fmt::format(
                "{}: written by rank {}, but rank 0 does not see it whole; all ranks of a training run need "
                "one file system for checkpoints",
                (partial / shard.file).string(), rank));
        }
        shards.push_back(std::move(shard));
    }
    write_manifest_files(partial, head, shards);
    commit_checkpoint(folder, head.step);
}

void check_slice(const Slice& slice, const CheckpointSlice& own) {
    for (const std::span<const float> part : {own.values, own.exp_avg, own.exp_avg_sq}) {
        if (std::ssize(part) != slice.size) {
            throw InternalError(fmt::format("checkpoint: a slice of {} elements, found {}", slice.size, part.size()));
        }
    }
}

}  // namespace

fs::path write_training_checkpoint(Communicator& world, const fs::path& folder, const CheckpointHead& head,
                                   const CheckpointSlice& own, int keep) {
    const Slice slice = slice_of(total_elements(head.table), world.size(), world.rank());
    check_slice(slice, own);
    ShardReport verdict;
    if (world.rank() == 0) {
        try {
            (void)begin_checkpoint(folder, head.step);
        } catch (const std::exception& error) {
            set_error(verdict, error);
        }
    }
    agree(world, verdict);

    ShardReport report;
    try {
        const CheckpointShard shard =
            write_shard(partial_path(folder, head.step), slice, world.rank(), world.size(), own);
        report.bytes = shard.bytes;
        std::copy(shard.hash.begin(), shard.hash.end(), report.hash.begin());
    } catch (const std::exception& error) {
        set_error(report, error);
    }
    const std::vector<ShardReport> reports = gather_reports(world, report);
    if (world.rank() == 0) {
        try {
            commit(folder, head, reports);
            delete_old_checkpoints(folder, keep, head.step);
        } catch (const std::exception& error) {
            abandon_checkpoint(folder, head.step);
            set_error(verdict, error);
        }
    }
    agree(world, verdict);
    return folder / step_name(head.step);
}

fs::path reshard_checkpoint(const TrainingCheckpoint& from, int ranks, const fs::path& output) {
    if (ranks < 1) throw UsageError(fmt::format("--ranks: expected at least 1, found {}", ranks));
    const std::int64_t step = from.head().step;
    if (fs::exists(output / step_name(step))) {
        throw UsageError(
            fmt::format("{} is there already; choose another folder", (output / step_name(step)).string()));
    }
    const fs::path partial = begin_checkpoint(output, step);
    try {
        std::vector<CheckpointShard> shards;
        for (int rank = 0; rank < ranks; ++rank) {
            const Slice slice = slice_of(from.total(), ranks, rank);
            const auto size = static_cast<std::size_t>(slice.size);
            std::vector<float> values(size);
            std::vector<float> exp_avg(size);
            std::vector<float> exp_avg_sq(size);
            from.read(slice.first, values, exp_avg, exp_avg_sq);
            shards.push_back(write_shard(partial, slice, rank, ranks, {values, exp_avg, exp_avg_sq}));
        }
        write_manifest_files(partial, from.head(), shards);
        return commit_checkpoint(output, step);
    } catch (...) {
        abandon_checkpoint(output, step);
        throw;
    }
}

}  // namespace fenwick
