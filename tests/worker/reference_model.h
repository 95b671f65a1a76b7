// A whole model in double, token mixing by the dense definition: the reference for every family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fenwick::reference {

enum class Rounding {
    kNone,
    kBf16,  ///< weights of products and what a GPU worker stores between its kernels are rounded to bf16, nothing else
            ///< is
};

/// One model, read from its folder. Its numbers may be changed: that is how gradients are checked.
class ReferenceModel {
public:
    ReferenceModel(const std::filesystem::path& folder, int threads, Rounding rounding = Rounding::kNone);
    ~ReferenceModel();
    ReferenceModel(const ReferenceModel&) = delete;
    ReferenceModel& operator=(const ReferenceModel&) = delete;

    /// The values of a tensor of the checkpoint. Throws std::out_of_range when there is none.
    [[nodiscard]] std::vector<double>& tensor(const std::string& name);

    /// Losses (nats) of tokens 1.. given the tokens before each.
    [[nodiscard]] std::vector<double> nll(const std::vector<std::int32_t>& ids);

    /// What training minimises: the sum over the rows t of `ids` with targets[t] >= 0 of
    /// nll + z_loss * logsumexp(logits)^2.
    [[nodiscard]] double objective(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets,
                                   double z_loss);

private:
    class Layers;
    std::unique_ptr<Layers> layers_;
};

/// Losses (nats) of tokens 1.. given the tokens before each, by the model in `folder`. Written apart from worker/: it
/// reads the tensors itself and uses nothing but kernels/reference.
[[nodiscard]] std::vector<double> model_nll(const std::filesystem::path& folder, const std::vector<std::int32_t>& ids,
                                            int threads, Rounding rounding = Rounding::kNone);

}  // namespace fenwick::reference
