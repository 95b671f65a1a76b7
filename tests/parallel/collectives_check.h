// Sliced collectives and groups of ranks as checks that any world can run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "parallel/collectives.h"
#include "parallel/sub_communicator.h"

namespace fenwick::test {

/// Numbers of very different size, so that fp32 sums would give other bits; every fourth of ranks 0 and 1 is one that
/// swallows the others' in double too, unless these two meet first.
inline std::vector<float> sliced_values(int rank, std::int64_t n) {
    std::mt19937 random(static_cast<std::uint32_t>(rank + 1));
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& value : values) value = std::ldexp(normal(random), static_cast<int>(random() % 40) - 20);
    for (std::size_t i = 0; i < values.size() && rank < 2; i += 4) values[i] = rank == 0 ? 0x1p100F : -0x1p100F;
    return values;
}

/// The first thing that is wrong on a rank. It goes on with the others, which wait for it.
struct FirstFault {
    std::string text;
    void note(bool good, const std::string& what) {
        if (!good && text.empty()) text = what;
    }
    void note(const std::string& fault) { note(fault.empty(), fault); }
};

/// Runs one rank's part and returns what is wrong, or nothing.
inline std::string check_slices(Communicator& comm, std::int64_t n, std::int64_t buffer_bytes) {
    const Slice own = slice_of(n, comm.size(), comm.rank());
    std::vector<double> sums(static_cast<std::size_t>(n), 0.0);
    for (int rank = 0; rank < comm.size(); ++rank) {
        const std::vector<float> values = sliced_values(rank, n);
        for (std::size_t i = 0; i < values.size(); ++i) sums[i] += static_cast<double>(values[i]);
    }
    const std::vector<float> expected(sums.begin(), sums.end());
    const auto has_slice = [&](const float* found) {
        return own.size == 0 ||
               std::memcmp(found, expected.data() + own.first, static_cast<std::size_t>(own.size) * sizeof(float)) == 0;
    };

    FirstFault fault;
    const std::string of_n = " of " + std::to_string(n);
    std::vector<float> all = sliced_values(comm.rank(), n);
    std::vector<float> slice(static_cast<std::size_t>(own.size), -1.0F);
    reduce_scatter_sum(comm, all, slice, buffer_bytes);
    fault.note(has_slice(slice.data()), "reduce_scatter_sum" + of_n);
    fault.note(all == sliced_values(comm.rank(), n), "reduce_scatter_sum changed its input");
    const std::span<float> part = std::span(all).subspan(static_cast<std::size_t>(own.first), slice.size());
    reduce_scatter_sum(comm, all, part, buffer_bytes);
    fault.note(has_slice(part.data()), "reduce_scatter_sum in place," + of_n);

    std::vector<float> gathered(static_cast<std::size_t>(n), -1.0F);
    all_gather_slices(comm, slice, gathered);
    fault.note(gathered == expected, "all_gather_slices" + of_n);
    all_gather_slices(comm, part, all);
    fault.note(all == expected, "all_gather_slices in place," + of_n);

    std::vector<double> few(static_cast<std::size_t>(std::min<std::int64_t>(n, 5)));
    for (std::size_t i = 0; i < few.size(); ++i) {
        few[i] = static_cast<double>(sliced_values(comm.rank(), n)[i]);
    }
    all_sum(comm, few);
    fault.note(std::equal(few.begin(), few.end(), sums.begin()), "all_sum");
    return fault.text;
}

/// Sizes below, at and above the number of ranks, and pieces of one element, of a few, and of all.
inline std::string check_all_slices(Communicator& comm) {
    FirstFault fault;
    const std::int64_t ranks = comm.size();
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, ranks - 1, ranks, ranks + 1, std::int64_t{1000}}) {
        for (const std::int64_t buffer_bytes : {std::int64_t{1}, 12 * ranks, kReduceBytes}) {
            fault.note(check_slices(comm, n, buffer_bytes));
        }
    }
    return fault.text;
}

/// A world as a grid: rows of `width` consecutive ranks (the last one shorter), and the columns across the rows.
inline std::string check_groups(Communicator& world, int width) {
    const int row = world.rank() / width;
    const int column = world.rank() % width;
    SubCommunicator across(world, ranks_in_steps(row * width, std::min(width, world.size() - row * width)));
    SubCommunicator down(world, ranks_in_steps(column, (world.size() - column + width - 1) / width, width));
    FirstFault fault;
    fault.note(across.rank() == column && down.rank() == row, "another rank in the group");
    fault.note(&across.status() == &world.status() && across.name() == world.name(), "another status or name");
    for (SubCommunicator* group : {&across, &down}) {
        fault.note(check_all_slices(*group));
        double numbers = world.rank();
        all_sum(*group, {&numbers, 1});
        double expected = 0.0;
        for (int rank = 0; rank < group->size(); ++rank) expected += group->world_rank(rank);
        fault.note(numbers == expected, "other ranks in the group");
        int last = world.rank();
        broadcast(*group, std::as_writable_bytes(std::span(&last, 1)), group->size() - 1);
        fault.note(last == group->world_rank(group->size() - 1), "broadcast in a group");
        barrier(*group);
    }
    barrier(world);
    return fault.text;
}

}  // namespace fenwick::test
