// The models that jobs may name: where they are, what they are, and their tokenizers. Weights are not kept: the
// coordinator computes nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/idl/fenwick_types.h"
#include "coordinator/service/config.h"
#include "core/tokenizer.h"

namespace fenwick {

struct ModelFacts {
    std::string name;  ///< of the configuration; empty for one that is named by path
    std::filesystem::path path;
    std::string hash;
    std::string family;
    std::int64_t parameters = 0;
    std::int64_t vocab_size = 0;
    std::int32_t bos_id = -1;
    std::int64_t trained_tokens = 0;
    /// Bytes of one summary of every layer, and of the convolutions' rows: what a saved state is made of.
    std::int64_t summary_bytes = 0;
    std::int64_t halo_bytes = 0;
};

class ModelCatalog {
public:
    /// Reads every model of the configuration once. Throws what Model::load throws, ConfigError for two of one name.
    ModelCatalog(const std::vector<NamedModel>& models, std::vector<std::filesystem::path> roots);

    /// Throws ServiceFault: NOT_FOUND, INVALID_ARGUMENT (neither or both of name and path), PERMISSION_DENIED (a path
    /// outside the roots), CONFLICT (another hash), CORRUPT_DATA.
    [[nodiscard]] ModelFacts resolve(const idl::ModelRef& ref);
    /// The model that a job was submitted with. Throws ServiceFault CONFLICT when it is another one by now.
    [[nodiscard]] ModelFacts known(const std::string& path, const std::string& hash);
    /// Shared: tokenizers are read once. `choice` as in resolve_tokenizer. Throws ConfigError, DataError.
    [[nodiscard]] std::shared_ptr<const Tokenizer> tokenizer(const std::string& choice, const ModelFacts& model);
    [[nodiscard]] std::vector<idl::ModelInfo> list() const;

private:
    [[nodiscard]] ModelFacts at_path(const std::filesystem::path& path);

    std::vector<std::filesystem::path> roots_;
    mutable std::mutex mutex_;
    std::map<std::string, ModelFacts> by_path_;
    std::map<std::string, std::string> path_of_name_;
    std::map<std::string, std::shared_ptr<const Tokenizer>> tokenizers_;
};

/// Whether `path`, with links resolved, lies in one of `roots`. What is not there is judged by what is.
[[nodiscard]] bool lies_under(const std::filesystem::path& path, const std::vector<std::filesystem::path>& roots);

}  // namespace fenwick
