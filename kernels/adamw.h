// The optimiser's step on flat vectors of parameters, and the norm that gradients are clipped by.
#pragma once

#include <cstdint>

namespace fenwick {

/// AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) with PyTorch's form of the decay: times the learning
/// rate. Rates are kept in double: what follows from them (1 - beta, 1 - beta^step) is rounded once.
struct AdamW {
    double learning_rate = 0;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weight_decay = 0.1;  ///< of runs that are decayed
};

/// What a step's formula needs of all that, in fp32.
struct AdamWFactors {
    float beta1, rest1;  ///< rest: 1 - beta
    float beta2, rest2;
    float step_size;    ///< learning_rate / (1 - beta1^step)
    float correction2;  ///< 1 / (1 - beta2^step)
    float epsilon;
    float decay;  ///< learning_rate * weight_decay, or 0
};

/// Throws InternalError for a step below 1.
[[nodiscard]] AdamWFactors adamw_factors(const AdamW& hyper, std::int64_t step, bool decayed);

/// Some values of the flat vector, neighbours that are all decayed or all not.
struct AdamWRun {
    std::int64_t size = 0;
    const float* gradient = nullptr;
    float* values = nullptr;
    float* first_moment = nullptr;   ///< m, 0 before step 1
    float* second_moment = nullptr;  ///< v, 0 before step 1
    bool decayed = false;
};

/// Step `step` (from 1 on), with g = gradient_scale * gradient (the scale clips):
///   m = beta1 m + (1 - beta1) g            v = beta2 v + (1 - beta2) g^2
///   values -= learning_rate * (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon) + weight_decay * values)
/// the last term where the run is decayed. All fp32; a value depends on nothing but its own entry, so that slices may
/// be cut anywhere. Throws InternalError for a step below 1.
void adamw_step(const AdamW& hyper, std::int64_t step, float gradient_scale, const AdamWRun& run, int threads);

/// Sum of squares of the values in double; its order follows from `size` alone. NaN or inf where a value is.
[[nodiscard]] double squared_norm(const float* values, std::int64_t size, int threads);

}  // namespace fenwick
