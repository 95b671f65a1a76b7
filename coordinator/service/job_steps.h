// What happens to a job before its first lease and after its last: its documents are listed and looked at, its result
// is written. Each step can be cut off anywhere and taken again.
#pragma once

#include <string>

#include "coordinator/service/job_folders.h"
#include "coordinator/service/model_catalog.h"
#include "coordinator/store/store.h"

namespace fenwick {

class JobSteps {
public:
    JobSteps(Store& store, JobFolders& folders, ModelCatalog& models, std::int64_t max_documents,
             std::int64_t most_active_of_client)
        : store_(store),
          folders_(folders),
          models_(models),
          max_documents_(max_documents),
          most_active_of_client_(most_active_of_client) {}

    /// The next step of a VALIDATING job: listing, or a batch of documents looked at, or its start. Returns true when
    /// there is more to do. A job that cannot be done as a whole fails. Throws what the disk throws: try again later.
    bool check(const std::string& job_id);

    /// FINALIZING, CANCELLING: results.jsonl, errors.jsonl and last manifest.json; then the job is over.
    void finish(const std::string& job_id);

private:
    [[nodiscard]] bool check_step(const std::string& job_id);
    [[nodiscard]] Store::CheckedDocument look_at(const StoredJob& job, const StoredDocument& document,
                                                 const ModelFacts& model, const Tokenizer& tokenizer);

    Store& store_;
    JobFolders& folders_;
    ModelCatalog& models_;
    std::int64_t max_documents_;
    std::int64_t most_active_of_client_;
};

}  // namespace fenwick
