#include "kernels/reference/mixer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "kernels/threads.h"

namespace fenwick::reference {
namespace {

struct Head {
    const MixerShape& shape;
    const MixerInputs& inputs;
    std::int64_t head;

    [[nodiscard]] std::int64_t key_head() const { return head / (shape.heads / shape.key_heads); }
    [[nodiscard]] const double* q(std::int64_t t) const {
        return &inputs.q[static_cast<std::size_t>((t * shape.key_heads + key_head()) * shape.key_dim)];
    }
    [[nodiscard]] const double* k(std::int64_t t) const {
        return &inputs.k[static_cast<std::size_t>((t * shape.key_heads + key_head()) * shape.key_dim)];
    }
    [[nodiscard]] const double* v(std::int64_t t) const {
        return &inputs.v[static_cast<std::size_t>((t * shape.heads + head) * shape.value_dim)];
    }
    [[nodiscard]] double beta(std::int64_t t) const {
        if (shape.algebra != TransitionAlgebra::kMatrix) return 1.0;
        return inputs.beta[static_cast<std::size_t>(t * shape.heads + head)];
    }
    [[nodiscard]] double decay(std::int64_t t, std::int64_t channel) const {
        const std::int64_t row = t * shape.heads + head;
        const bool diagonal = shape.algebra == TransitionAlgebra::kDiagonal;
        return std::exp(inputs.log_decay[static_cast<std::size_t>(diagonal ? row * shape.key_dim + channel : row)]);
    }
    [[nodiscard]] double lambda(std::int64_t t, std::int64_t level) const {
        if (!shape.log_linear()) return 1.0;
        const std::int64_t used = std::min(level, shape.levels - 1);
        return inputs.lambda[static_cast<std::size_t>((t * shape.heads + head) * shape.levels + used)];
    }

    // x <- A_t x for one column x [d_k].
    void transition(std::int64_t t, const double* decays, double* x) const {
        const std::int64_t dk = shape.key_dim;
        if (shape.algebra == TransitionAlgebra::kMatrix) {
            double dot = 0.0;
            const double* key = k(t);
#pragma omp simd reduction(+ : dot)
            for (std::int64_t c = 0; c < dk; ++c) dot += key[c] * x[c];
            dot *= beta(t);
            for (std::int64_t c = 0; c < dk; ++c) x[c] = decays[0] * (x[c] - dot * key[c]);
            return;
        }
        const bool diagonal = shape.algebra == TransitionAlgebra::kDiagonal;
        for (std::int64_t c = 0; c < dk; ++c) x[c] *= decays[diagonal ? c : 0];
    }

    // exp of the log decays of all tokens: [tokens, 1 or d_k].
    [[nodiscard]] std::vector<double> all_decays() const {
        const std::int64_t channels = shape.algebra == TransitionAlgebra::kDiagonal ? shape.key_dim : 1;
        std::vector<double> all(static_cast<std::size_t>(inputs.tokens * channels));
        for (std::int64_t t = 0; t < inputs.tokens; ++t) {
            for (std::int64_t c = 0; c < channels; ++c) all[static_cast<std::size_t>(t * channels + c)] = decay(t, c);
        }
        return all;
    }
};

std::int64_t level_of(std::int64_t t, std::int64_t s) {
    return t == s ? 0 : std::bit_width(static_cast<std::uint64_t>(t ^ s));
}

void dense_head(const Head& head, double* out) {
    const MixerShape& shape = head.shape;
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    const std::vector<double> decays = head.all_decays();
    const std::int64_t channels = shape.algebra == TransitionAlgebra::kDiagonal ? dk : 1;
    std::vector<double> x(static_cast<std::size_t>(dk));
    for (std::int64_t s = 0; s < head.inputs.tokens; ++s) {
        for (std::int64_t c = 0; c < dk; ++c) x[static_cast<std::size_t>(c)] = head.beta(s) * head.k(s)[c];
        for (std::int64_t t = s; t < head.inputs.tokens; ++t) {
            if (t > s) head.transition(t, &decays[static_cast<std::size_t>(t * channels)], x.data());
            const double* q = head.q(t);
            const double* column = x.data();
            double p = 0.0;
#pragma omp simd reduction(+ : p)
            for (std::int64_t c = 0; c < dk; ++c) p += q[c] * column[c];
            p *= head.lambda(t, level_of(t, s));
            double* row = out + (t * shape.heads + head.head) * dv;
            const double* v = head.v(s);
            for (std::int64_t c = 0; c < dv; ++c) row[c] += p * v[c];
        }
    }
}

struct Bucket {
    std::int64_t bit = 0;       // 2^bit tokens
    std::vector<double> state;  // [d_v][d_k]: columns contiguous
};

void recurrent_head(const Head& head, double* out) {
    const MixerShape& shape = head.shape;
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    const std::vector<double> decays = head.all_decays();
    const std::int64_t channels = shape.algebra == TransitionAlgebra::kDiagonal ? dk : 1;
    std::vector<Bucket> buckets;  // of the prefix, oldest first
    for (std::int64_t t = 0; t < head.inputs.tokens; ++t) {
        Bucket own;
        own.state.resize(static_cast<std::size_t>(dk * dv));
        for (std::int64_t j = 0; j < dv; ++j) {
            for (std::int64_t c = 0; c < dk; ++c) {
                own.state[static_cast<std::size_t>(j * dk + c)] = head.beta(t) * head.k(t)[c] * head.v(t)[j];
            }
        }
        double* row = out + (t * shape.heads + head.head) * dv;
        for (Bucket& b : buckets) {
            for (std::int64_t j = 0; j < dv; ++j) {
                double* column = &b.state[static_cast<std::size_t>(j * dk)];
                head.transition(t, &decays[static_cast<std::size_t>(t * channels)], column);
                const double* q = head.q(t);
                double dot = 0.0;
#pragma omp simd reduction(+ : dot)
                for (std::int64_t c = 0; c < dk; ++c) dot += q[c] * column[c];
                row[j] += head.lambda(t, b.bit + 1) * dot;
            }
        }
        double dot = 0.0;
        for (std::int64_t c = 0; c < dk; ++c) dot += head.q(t)[c] * head.k(t)[c];
        for (std::int64_t j = 0; j < dv; ++j) row[j] += head.lambda(t, 0) * head.beta(t) * dot * head.v(t)[j];
        while (!buckets.empty() && buckets.back().bit == own.bit) {
            const Bucket& left = buckets.back();
            for (std::size_t i = 0; i < own.state.size(); ++i) own.state[i] += left.state[i];
            ++own.bit;
            buckets.pop_back();
        }
        buckets.push_back(std::move(own));
    }
}

}  // namespace

std::vector<double> mixer_dense(const MixerShape& shape, const MixerInputs& inputs, int threads) {
    std::vector<double> out(static_cast<std::size_t>(inputs.tokens * shape.heads * shape.value_dim), 0.0);
    parallel_tasks(shape.heads, threads, [&](std::int64_t h, int) { dense_head({shape, inputs, h}, out.data()); });
    return out;
}

std::vector<double> mixer_recurrent(const MixerShape& shape, const MixerInputs& inputs, int threads) {
    std::vector<double> out(static_cast<std::size_t>(inputs.tokens * shape.heads * shape.value_dim), 0.0);
    parallel_tasks(shape.heads, threads, [&](std::int64_t h, int) { recurrent_head({shape, inputs, h}, out.data()); });
    return out;
}

}  // namespace fenwick::reference
