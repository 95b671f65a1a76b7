// Stands in for CUB's radix sort: a stable sort by key.
#pragma once
#include <numeric>
#include <vector>

#include "cuda_on_host.h"
namespace cub {
struct DeviceRadixSort {
    template <class K, class V, class N>
    static cudaError_t SortPairs(void* temporary, std::size_t& bytes, const K* keys, K* keys_out, const V* values,
                                 V* values_out, N count, int = 0, int = sizeof(K) * 8, cudaStream_t = nullptr) {
        if (temporary == nullptr) {
            bytes = 512;
            return 0;
        }
        std::memset(temporary, 0x77, bytes);
        std::vector<std::size_t> order(static_cast<std::size_t>(count));
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; });
        for (std::size_t i = 0; i < order.size(); ++i) {
            keys_out[i] = keys[order[i]];
            values_out[i] = values[order[i]];
        }
        return 0;
    }
};
}  // namespace cub
