#include "kernels/reference/summary.h"

#include <cmath>
#include <cstdint>

namespace fenwick::reference {
namespace {

/// Places of one head's values in a packed summary, and its transition as a matrix, whatever the algebra.
struct Head {
    const MixerShape& shape;
    std::int64_t start;  ///< of A

    [[nodiscard]] std::int64_t transition_size() const {
        if (shape.algebra == TransitionAlgebra::kScalar) return 1;
        return shape.algebra == TransitionAlgebra::kDiagonal ? shape.key_dim : shape.key_dim * shape.key_dim;
    }
    [[nodiscard]] std::size_t log_decay(std::int64_t row) const {
        return static_cast<std::size_t>(start + (shape.algebra == TransitionAlgebra::kDiagonal ? row : 0));
    }
    [[nodiscard]] std::size_t a(std::int64_t row, std::int64_t column) const {
        return static_cast<std::size_t>(start + row * shape.key_dim + column);
    }
    [[nodiscard]] std::size_t s(std::int64_t row, std::int64_t column) const {
        return static_cast<std::size_t>(start + transition_size() + row * shape.value_dim + column);
    }
    [[nodiscard]] bool matrix() const { return shape.algebra == TransitionAlgebra::kMatrix; }
    /// Element (row, column) of A as a matrix.
    [[nodiscard]] double transition(const std::vector<double>& node, std::int64_t row, std::int64_t column) const {
        if (matrix()) return node[a(row, column)];
        return row == column ? std::exp(node[log_decay(row)]) : 0.0;
    }
    /// What element (row, column) of dA, A as a matrix, means for the values that A is stored as.
    void add_transition_gradient(const std::vector<double>& node, std::int64_t row, std::int64_t column, double d,
                                 std::vector<double>& d_node) const {
        if (matrix()) {
            d_node[a(row, column)] += d;
        } else if (row == column && std::isfinite(node[log_decay(row)])) {
            d_node[log_decay(row)] += std::exp(node[log_decay(row)]) * d;
        }
    }
};

std::vector<Head> heads_of(const MixerShape& shape) {
    std::vector<Head> heads;
    std::int64_t start = 0;
    for (std::int64_t h = 0; h < shape.heads; ++h) {
        heads.push_back({shape, start});
        start += heads.back().transition_size() + shape.key_dim * shape.value_dim;
    }
    return heads;
}

}  // namespace

std::vector<double> combine_summaries(const MixerShape& shape, const std::vector<double>& left,
                                      const std::vector<double>& right) {
    std::vector<double> out(left.size());
    const std::int64_t dk = shape.key_dim;
    for (const Head& head : heads_of(shape)) {
        for (std::int64_t i = 0; i < dk; ++i) {
            if (!head.matrix()) out[head.log_decay(i)] = right[head.log_decay(i)] + left[head.log_decay(i)];
            for (std::int64_t j = 0; j < dk && head.matrix(); ++j) {
                for (std::int64_t m = 0; m < dk; ++m) out[head.a(i, j)] += right[head.a(i, m)] * left[head.a(m, j)];
            }
            for (std::int64_t c = 0; c < shape.value_dim; ++c) {
                out[head.s(i, c)] = right[head.s(i, c)];
                for (std::int64_t m = 0; m < dk; ++m) {
                    out[head.s(i, c)] += head.transition(right, i, m) * left[head.s(m, c)];
                }
            }
        }
    }
    return out;
}

SummaryGradients combine_summaries_backward(const MixerShape& shape, const std::vector<double>& left,
                                            const std::vector<double>& right, const std::vector<double>& d_out) {
    SummaryGradients d{std::vector<double>(left.size()), std::vector<double>(right.size())};
    const std::int64_t dk = shape.key_dim;
    for (const Head& head : heads_of(shape)) {
        for (std::int64_t i = 0; i < dk; ++i) {
            for (std::int64_t c = 0; c < shape.value_dim; ++c) {
                const double d_state = d_out[head.s(i, c)];
                d.right[head.s(i, c)] += d_state;
                for (std::int64_t m = 0; m < dk; ++m) {
                    d.left[head.s(m, c)] += head.transition(right, i, m) * d_state;
                    head.add_transition_gradient(right, i, m, d_state * left[head.s(m, c)], d.right);
                }
            }
            for (std::int64_t j = 0; j < dk && head.matrix(); ++j) {
                for (std::int64_t m = 0; m < dk; ++m) {
                    d.left[head.a(m, j)] += right[head.a(i, m)] * d_out[head.a(i, j)];
                    d.right[head.a(i, m)] += d_out[head.a(i, j)] * left[head.a(m, j)];
                }
            }
        }
        for (std::int64_t i = 0; i < head.transition_size() && !head.matrix(); ++i) {
            const std::size_t at = head.start + static_cast<std::size_t>(i);
            if (std::isfinite(left[at])) d.left[at] += d_out[at];
            if (std::isfinite(right[at])) d.right[at] += d_out[at];
        }
    }
    return d;
}

std::vector<double> carry_state(const MixerShape& shape, const std::vector<double>& node,
                                const std::vector<double>& state) {
    const Head head{shape, 0};
    const std::int64_t dv = shape.value_dim;
    std::vector<double> out(state.size());
    for (std::int64_t i = 0; i < shape.key_dim; ++i) {
        for (std::int64_t m = 0; m < shape.key_dim; ++m) {
            for (std::int64_t c = 0; c < dv; ++c) out[i * dv + c] += head.transition(node, i, m) * state[m * dv + c];
        }
    }
    return out;
}

CarryGradients carry_state_backward(const MixerShape& shape, const std::vector<double>& node,
                                    const std::vector<double>& state, const std::vector<double>& d_out) {
    const Head head{shape, 0};
    const std::int64_t dv = shape.value_dim;
    CarryGradients d{std::vector<double>(node.size()), std::vector<double>(state.size())};
    for (std::int64_t i = 0; i < shape.key_dim; ++i) {
        for (std::int64_t m = 0; m < shape.key_dim; ++m) {
            for (std::int64_t c = 0; c < dv; ++c) {
                d.state[m * dv + c] += head.transition(node, i, m) * d_out[i * dv + c];
                head.add_transition_gradient(node, i, m, d_out[i * dv + c] * state[m * dv + c], d.node);
            }
        }
    }
    return d;
}

}  // namespace fenwick::reference
