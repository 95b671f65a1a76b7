// A whole model in double, token mixing by the dense definition: the reference for every family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace fenwick::reference {

enum class Rounding {
    kNone,
    kBf16,  ///< weights of products and what a GPU worker stores between its kernels are rounded to bf16, nothing else
            ///< is
};

/// Losses (nats) of tokens 1.. given the tokens before each, by the model in `folder`. Written apart from worker/: it
/// reads the tensors itself and uses nothing but kernels/reference.
[[nodiscard]] std::vector<double> model_nll(const std::filesystem::path& folder, const std::vector<std::int32_t>& ids,
                                            int threads, Rounding rounding = Rounding::kNone);

}  // namespace fenwick::reference
