#include "coordinator/service/model_catalog.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "coordinator/store/service_fault.h"
#include "core/errors.h"
#include "worker/model.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

ModelFacts read_model(const fs::path& path) {
    const std::shared_ptr<const Model> model = Model::load(path);
    ModelFacts facts;
    facts.path = path;
    facts.hash = model->hash();
    facts.family = model->family();
    facts.parameters = model->parameter_count();
    facts.vocab_size = model->vocab_size();
    facts.bos_id = model->bos_id();
    facts.trained_tokens = model->trained_tokens();
    for (const LayerCost& cost : model->layer_costs()) {
        facts.summary_bytes += cost.summary_bytes;
        facts.halo_bytes += cost.halo_bytes;
    }
    return facts;
}

}  // namespace

bool lies_under(const fs::path& path, const std::vector<fs::path>& roots) {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(path, error);
    if (error) return false;
    return std::any_of(roots.begin(), roots.end(), [&](const fs::path& root) {
        std::error_code root_error;
        const fs::path real_root = fs::weakly_canonical(root, root_error);
        if (root_error) return false;
        const auto [in_root, in_path] = std::mismatch(real_root.begin(), real_root.end(), real.begin(), real.end());
        // "/a/" ends with an empty part.
        return in_root == real_root.end() || (in_root->empty() && std::next(in_root) == real_root.end());
    });
}

ModelCatalog::ModelCatalog(const std::vector<NamedModel>& models, std::vector<fs::path> roots)
    : roots_(std::move(roots)) {
    for (const NamedModel& model : models) {
        ModelFacts facts = read_model(model.path);
        facts.name = model.name;
        spdlog::info("model {}: {} of {} parameters, hash {}", model.name, facts.family, facts.parameters, facts.hash);
        if (!path_of_name_.emplace(model.name, model.path.string()).second) {
            throw ConfigError(fmt::format("models.{}: named twice", model.name));
        }
        by_path_.insert_or_assign(model.path.string(), std::move(facts));
    }
}

ModelFacts ModelCatalog::at_path(const fs::path& path) {
    const std::lock_guard lock(mutex_);
    if (const auto found = by_path_.find(path.string()); found != by_path_.end()) return found->second;
    ModelFacts facts = read_model(path);
    by_path_.emplace(path.string(), facts);
    return facts;
}

ModelFacts ModelCatalog::resolve(const idl::ModelRef& ref) {
    const bool named = ref.__isset.name && !ref.name.empty();
    const bool placed = ref.__isset.path && !ref.path.empty();
    if (named == placed) {
        throw ServiceFault(ServiceCode::INVALID_ARGUMENT,
                           "model: expected either a name or a path, found both or none");
    }
    fs::path path = ref.path;
    if (named) {
        const auto found = path_of_name_.find(ref.name);
        if (found == path_of_name_.end()) {
            std::string names;
            for (const auto& [name, where] : path_of_name_) names += (names.empty() ? "" : ", ") + name;
            throw ServiceFault(ServiceCode::NOT_FOUND,
                               fmt::format("model '{}': there is none of that name; there are: {}", ref.name, names));
        }
        path = found->second;
    } else if (by_path_.find(path.string()) == by_path_.end() && !lies_under(path, roots_)) {
        throw ServiceFault(ServiceCode::PERMISSION_DENIED,
                           "model.path: not under one of the coordinator's model roots; ask for one, or use a name");
    }
    ModelFacts facts;
    try {
        facts = at_path(path);
    } catch (const ServiceFault&) {
        throw;
    } catch (const Error& error) {
        const bool damaged = error.code() == ExitCode::kBadInput;
        throw ServiceFault(damaged ? ServiceCode::CORRUPT_DATA : ServiceCode::INVALID_ARGUMENT, error.what());
    }
    if (ref.__isset.hash && !ref.hash.empty() && ref.hash != facts.hash) {
        throw ServiceFault(ServiceCode::CONFLICT,
                           fmt::format("model.hash: expected {}, but the model there has {}", ref.hash, facts.hash));
    }
    return facts;
}

ModelFacts ModelCatalog::known(const std::string& path, const std::string& hash) {
    ModelFacts facts = at_path(path);
    if (facts.hash != hash) {
        throw ServiceFault(ServiceCode::CONFLICT,
                           fmt::format("{}: the job was submitted with a model of hash {}, now its hash is {}", path,
                                       hash, facts.hash));
    }
    return facts;
}

std::shared_ptr<const Tokenizer> ModelCatalog::tokenizer(const std::string& choice, const ModelFacts& model) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Tokenizer>& tokenizer = tokenizers_[choice + "\n" + model.path.string()];
    if (!tokenizer) tokenizer = resolve_tokenizer(choice, model.path, model.vocab_size);
    return tokenizer;
}

std::vector<idl::ModelInfo> ModelCatalog::list() const {
    const std::lock_guard lock(mutex_);
    std::vector<idl::ModelInfo> models;
    for (const auto& [name, path] : path_of_name_) {
        const ModelFacts& facts = by_path_.at(path);
        idl::ModelInfo info;
        info.name = name;
        info.path = path;
        info.hash = facts.hash;
        info.family = facts.family;
        info.parameters = facts.parameters;
        info.vocabSize = facts.vocab_size;
        info.trainedTokens = facts.trained_tokens;
        models.push_back(std::move(info));
    }
    return models;
}

}  // namespace fenwick
