#include "kernels/reference/matmul.h"

#include <algorithm>
#include <cmath>

namespace fenwick::reference {

std::vector<double> matmul(MatrixView<const double> x, MatrixView<const double> weight,
                           const std::vector<double>& bias) {
    std::vector<double> y;
    y.reserve(static_cast<std::size_t>(x.rows * weight.rows));
    for (std::int64_t r = 0; r < x.rows; ++r) {
        for (std::int64_t c = 0; c < weight.rows; ++c) {
            double sum = bias.empty() ? 0.0 : bias[c];
            for (std::int64_t p = 0; p < x.cols; ++p) sum += x.row(r)[p] * weight.row(c)[p];
            y.push_back(sum);
        }
    }
    return y;
}

std::vector<double> cross_entropy(MatrixView<const double> h, MatrixView<const double> lm_head,
                                  const std::int32_t* targets) {
    std::vector<double> nll;
    for (std::int64_t t = 0; t < h.rows; ++t) {
        const std::vector<double> logits = matmul(h.row_range(t, 1), lm_head, {});
        const double maximum = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit - maximum);
        nll.push_back(maximum + std::log(sum) - logits[targets[t]]);
    }
    return nll;
}

std::vector<double> embed_rows(MatrixView<const double> table, const std::vector<std::int32_t>& ids) {
    std::vector<double> out;
    for (const std::int32_t id : ids) out.insert(out.end(), table.row(id), table.row(id) + table.cols);
    return out;
}

}  // namespace fenwick::reference
