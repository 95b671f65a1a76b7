// Parallel loops over tiles. Which thread runs a tile never changes what the tile computes.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace fenwick {

/// Rows of one task of a row-wise kernel (norms, gates, convolution): enough work to pay for handing it to a thread.
inline constexpr std::int64_t kRowTask = 64;

/// Runs task(index, thread) for every index in [0, count) on at most `threads` threads; thread is in [0, threads).
/// `task` must not throw.
template <class Task>
void parallel_tasks(std::int64_t count, int threads, const Task& task) {
    if (threads <= 1 || count <= 1) {
        for (std::int64_t i = 0; i < count; ++i) task(i, 0);
        return;
    }
    const int workers = static_cast<int>(std::min<std::int64_t>(threads, count));
#pragma omp parallel for num_threads(workers) schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) task(i, omp_get_thread_num());
}

/// Runs task(first, last) over [0, rows) in pieces of kRowTask rows.
template <class Task>
void parallel_rows(std::int64_t rows, int threads, const Task& task) {
    parallel_tasks((rows + kRowTask - 1) / kRowTask, threads,
                   [&](std::int64_t i, int) { task(i * kRowTask, std::min(rows, (i + 1) * kRowTask)); });
}

}  // namespace fenwick
