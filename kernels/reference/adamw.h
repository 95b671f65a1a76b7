// AdamW in double, as plainly as it can be written (kernels/adamw.h has the formula).
#pragma once

#include <cstdint>

#include "kernels/adamw.h"

namespace fenwick::reference {

struct AdamWState {
    double value = 0;
    double m = 0;
    double v = 0;
};

/// `gradient` is scaled already.
[[nodiscard]] AdamWState adamw_step(const AdamW& hyper, std::int64_t step, double gradient, bool decayed,
                                    const AdamWState& before);

}  // namespace fenwick::reference
