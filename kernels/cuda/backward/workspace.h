// Parts of a workspace, one after the other, each 1,024-byte aligned from its start, and how large a batch's may be.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fenwick::cuda::backward {

namespace detail {
inline std::atomic<std::int64_t> batch_bytes{std::int64_t{4} << 30};
}

/// Bytes that the tiles of one batch of blocks may take; a batch has at least one block.
[[nodiscard]] inline std::int64_t most_batch_bytes() {
    return detail::batch_bytes;
}

/// While it lives, batches have no more bytes than this: for tests of shards of several batches.
class BatchLimit {
public:
    explicit BatchLimit(std::int64_t bytes) : before_(detail::batch_bytes.exchange(bytes)) {}
    BatchLimit(const BatchLimit&) = delete;
    BatchLimit& operator=(const BatchLimit&) = delete;
    ~BatchLimit() { detail::batch_bytes = before_; }

private:
    std::int64_t before_;
};

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
