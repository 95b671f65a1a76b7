// The shape of a sequence mixer: which algebra, which read-out, how many heads of what size.
#pragma once

#include <cstdint>

namespace fenwick {

/// What later tokens do to an earlier state (DESIGN section 3).
enum class TransitionAlgebra { kScalar, kDiagonal, kMatrix };

struct MixerShape {
    TransitionAlgebra algebra = TransitionAlgebra::kScalar;
    std::int64_t heads = 0;      ///< value heads
    std::int64_t key_heads = 0;  ///< divides heads; value head h reads key head h / (heads / key_heads)
    std::int64_t key_dim = 0;    ///< d_k
    std::int64_t value_dim = 0;  ///< d_v
    std::int64_t levels = 0;     ///< levels that lambda has; 0: linear read-out (one state)

    [[nodiscard]] bool log_linear() const { return levels > 0; }
};

}  // namespace fenwick
