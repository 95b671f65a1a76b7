#include "kernels/reference/mixer_backward.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace fenwick::reference {
namespace {

using State = std::vector<double>;  // [d_v][d_k]: columns contiguous

struct Bucket {
    std::int64_t bit = 0;  // 2^bit tokens
    State state;
};

std::size_t at(std::int64_t i) {
    return static_cast<std::size_t>(i);
}

// One head of one token: where its numbers and their gradients lie.
struct Token {
    const double* q;
    const double* k;
    const double* v;
    double beta;
    std::vector<double> decay;  // [1 or d_k]
    const double* d_out;
    double* d_q;
    double* d_k;
    double* d_v;
    double* d_log_decay;
    double* d_beta;  // a number that nobody reads where the algebra has none
};

class HeadBackward {
public:
    HeadBackward(const MixerShape& shape, const MixerInputs& inputs, const std::vector<double>& d_out,
                 std::int64_t head, MixerInputs& gradients)
        : shape_(shape),
          inputs_(inputs),
          d_out_(d_out),
          head_(head),
          gradients_(gradients),
          dk_(shape.key_dim),
          dv_(shape.value_dim),
          channels_(shape.algebra == TransitionAlgebra::kDiagonal ? dk_ : 1) {}

    void run() {
        std::vector<std::vector<Bucket>> met;  // the prefix's buckets before each token, oldest first
        std::vector<Bucket> buckets;
        for (std::int64_t t = 0; t < inputs_.tokens; ++t) {
            met.push_back(buckets);
            step(t, buckets);
        }
        std::vector<Bucket> gradient = buckets;  // of the states after the last token
        for (Bucket& b : gradient) std::fill(b.state.begin(), b.state.end(), 0.0);
        for (std::int64_t t = inputs_.tokens - 1; t >= 0; --t) gradient = step_backward(t, met[at(t)], gradient);
    }

private:
    [[nodiscard]] Token token(std::int64_t t) {
        const std::int64_t key = (t * shape_.key_heads + head_ / (shape_.heads / shape_.key_heads)) * dk_;
        const std::int64_t row = t * shape_.heads + head_;
        const bool matrix = shape_.algebra == TransitionAlgebra::kMatrix;
        Token x{&inputs_.q[at(key)],
                &inputs_.k[at(key)],
                &inputs_.v[at(row * dv_)],
                matrix ? inputs_.beta[at(row)] : 1.0,
                {},
                &d_out_[at(row * dv_)],
                &gradients_.q[at(key)],
                &gradients_.k[at(key)],
                &gradients_.v[at(row * dv_)],
                &gradients_.log_decay[at(row * channels_)],
                matrix ? &gradients_.beta[at(row)] : &unused_};
        for (std::int64_t c = 0; c < channels_; ++c) {
            x.decay.push_back(std::exp(inputs_.log_decay[at(row * channels_ + c)]));
        }
        return x;
    }

    // Where lambda of token t for `level` lies; -1 for a linear read-out, whose lambda is 1.
    [[nodiscard]] std::int64_t lambda_at(std::int64_t t, std::int64_t level) const {
        if (!shape_.log_linear()) return -1;
        return (t * shape_.heads + head_) * shape_.levels + std::min(level, shape_.levels - 1);
    }
    [[nodiscard]] double lambda(std::int64_t t, std::int64_t level) const {
        const std::int64_t i = lambda_at(t, level);
        return i < 0 ? 1.0 : inputs_.lambda[at(i)];
    }
    void add_to_lambda(std::int64_t t, std::int64_t level, double gradient) {
        const std::int64_t i = lambda_at(t, level);
        if (i >= 0) gradients_.lambda[at(i)] += gradient;
    }

    [[nodiscard]] double dot(const double* a, const double* b) const {
        double sum = 0.0;
        for (std::int64_t c = 0; c < dk_; ++c) sum += a[c] * b[c];
        return sum;
    }

    [[nodiscard]] double decay_of(const Token& x, std::int64_t c) const { return x.decay[at(channels_ == 1 ? 0 : c)]; }

    // A_t applied to one column.
    void transition(const Token& x, double* column) const {
        const double write = shape_.algebra == TransitionAlgebra::kMatrix ? x.beta * dot(x.k, column) : 0.0;
        for (std::int64_t c = 0; c < dk_; ++c) column[c] = decay_of(x, c) * (column[c] - write * x.k[c]);
    }

    // The buckets before token t become those after it.
    void step(std::int64_t t, std::vector<Bucket>& buckets) {
        const Token x = token(t);
        Bucket own{0, State(at(dk_ * dv_))};
        for (std::int64_t i = 0; i < dk_ * dv_; ++i) own.state[at(i)] = x.beta * x.k[i % dk_] * x.v[i / dk_];
        for (Bucket& b : buckets) {
            for (std::int64_t j = 0; j < dv_; ++j) transition(x, &b.state[at(j * dk_)]);
        }
        while (!buckets.empty() && buckets.back().bit == own.bit) {
            for (std::size_t i = 0; i < own.state.size(); ++i) own.state[i] += buckets.back().state[i];
            ++own.bit;
            buckets.pop_back();
        }
        buckets.push_back(std::move(own));
    }

    // From the gradients of the buckets after token t to those of the buckets before it.
    std::vector<Bucket> step_backward(std::int64_t t, const std::vector<Bucket>& before,
                                      const std::vector<Bucket>& d_after) {
        const Token x = token(t);
        // Buckets that merged into the newest one, the token's own among them, share its gradient.
        const std::size_t kept = d_after.size() - 1;
        std::vector<Bucket> d_before;
        for (std::size_t b = 0; b < before.size(); ++b) {
            d_before.push_back({before[b].bit, d_after[std::min(b, kept)].state});
            for (std::int64_t j = 0; j < dv_; ++j) {
                column_backward(t, x, before[b].bit + 1, &before[b].state[at(j * dk_)], x.d_out[j],
                                &d_before[b].state[at(j * dk_)]);
            }
        }
        own_backward(t, x, d_after.back().state);
        return d_before;
    }

    // One column of a bucket: read by q after A_t. `d` is the column's gradient, after A_t and then before it.
    void column_backward(std::int64_t t, const Token& x, std::int64_t level, const double* before, double d_o,
                         double* d) {
        std::vector<double> after(before, before + dk_);
        transition(x, after.data());
        const double scale = lambda(t, level);
        add_to_lambda(t, level, d_o * dot(x.q, after.data()));
        for (std::int64_t c = 0; c < dk_; ++c) {
            x.d_q[c] += scale * d_o * after[at(c)];
            d[c] += scale * d_o * x.q[c];
            // after = exp(g) * (...), so that its gradient by g is itself
            x.d_log_decay[channels_ == 1 ? 0 : c] += d[c] * after[at(c)];
            d[c] *= decay_of(x, c);
        }
        if (shape_.algebra != TransitionAlgebra::kMatrix) return;
        const double written = dot(x.k, before);
        const double d_written = dot(x.k, d);
        *x.d_beta -= written * d_written;
        for (std::int64_t c = 0; c < dk_; ++c) {
            x.d_k[c] -= x.beta * (written * d[c] + d_written * before[c]);
            d[c] -= x.beta * d_written * x.k[c];
        }
    }

    // The token's own state beta k v^T, of gradient `d_state`, and its own read-out at level 0.
    void own_backward(std::int64_t t, const Token& x, const State& d_state) {
        const double scale = lambda(t, 0);
        const double read = dot(x.q, x.k);
        double d_read = 0.0;  // of q . k
        for (std::int64_t j = 0; j < dv_; ++j) {
            const double d_o = x.d_out[j];
            const double* d = &d_state[at(j * dk_)];
            const double key_d = dot(x.k, d);
            add_to_lambda(t, 0, d_o * x.beta * read * x.v[j]);
            *x.d_beta += scale * d_o * read * x.v[j] + key_d * x.v[j];
            x.d_v[j] += scale * d_o * x.beta * read + x.beta * key_d;
            d_read += scale * d_o * x.beta * x.v[j];
            for (std::int64_t c = 0; c < dk_; ++c) x.d_k[c] += x.beta * x.v[j] * d[c];
        }
        for (std::int64_t c = 0; c < dk_; ++c) {
            x.d_q[c] += d_read * x.k[c];
            x.d_k[c] += d_read * x.q[c];
        }
    }

    const MixerShape& shape_;
    const MixerInputs& inputs_;
    const std::vector<double>& d_out_;
    std::int64_t head_;
    MixerInputs& gradients_;
    std::int64_t dk_;
    std::int64_t dv_;
    std::int64_t channels_;
    double unused_ = 0.0;
};

}  // namespace

MixerInputs mixer_backward(const MixerShape& shape, const MixerInputs& inputs, const std::vector<double>& d_out) {
    MixerInputs gradients;
    gradients.tokens = inputs.tokens;
    gradients.q.assign(inputs.q.size(), 0.0);
    gradients.k.assign(inputs.k.size(), 0.0);
    gradients.v.assign(inputs.v.size(), 0.0);
    gradients.log_decay.assign(inputs.log_decay.size(), 0.0);
    gradients.beta.assign(inputs.beta.size(), 0.0);
    gradients.lambda.assign(inputs.lambda.size(), 0.0);
    for (std::int64_t h = 0; h < shape.heads; ++h) HeadBackward(shape, inputs, d_out, h, gradients).run();
    return gradients;
}

}  // namespace fenwick::reference
