// Pages of mapped files: keeps the memory of long sequential reads flat.
#pragma once

#include <cstdint>

#include "core/files.h"

namespace fenwick {

/// Takes pages that a long read of [offset, offset + length) touched out of this process; they stay in the system's
/// cache. Short ranges (below 1 MiB) are left alone. A hint: failure changes nothing.
void forget_pages(const MappedFile& file, std::int64_t offset, std::int64_t length);

}  // namespace fenwick
