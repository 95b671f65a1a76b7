// Parts of a workspace, one after the other, each 1,024-byte aligned from its start.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fenwick::cuda::backward {

struct Carver {
    unsigned char* memory = nullptr;  ///< null: only sizes are wanted
    std::size_t used = 0;

    template <class T>
    T* take(std::int64_t count) {
        T* at = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + used);
        used += (static_cast<std::size_t>(count) * sizeof(T) + 1023) / 1024 * 1024;
        return at;
    }
};

}  // namespace fenwick::cuda::backward
