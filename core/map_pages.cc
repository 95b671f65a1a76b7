#include "core/map_pages.h"

#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <system_error>

namespace fenwick {

void forget_pages(const MappedFile& file, std::int64_t offset, std::int64_t length) {
    constexpr std::int64_t kWorthwhileBytes = std::int64_t{1} << 20;
    if (length < kWorthwhileBytes) return;
    const std::int64_t page = ::sysconf(_SC_PAGESIZE);
    const std::int64_t begin = offset / page * page;
    const std::int64_t end = std::min(offset + length, file.size());
    auto* address = const_cast<std::byte*>(file.bytes().data()) + begin;
    if (::madvise(address, static_cast<std::size_t>(end - begin), MADV_DONTNEED) != 0) {
        spdlog::debug("{}: madvise: {}", file.path().string(), std::generic_category().message(errno));
    }
}

}  // namespace fenwick
