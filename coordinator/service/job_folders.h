// Where the coordinator's files are:
//   data/store.db                         the store
//   data/uploads/ID/NAME                  an upload
//   data/jobs/ID/inputs/N.jsonl           documents that came inside the spec
//   data/jobs/ID/output/                  as `fenwick score` writes it (output_folder.h)
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/output_folder.h"
#include "coordinator/service/model_catalog.h"
#include "coordinator/store/store.h"
#include "core/documents.h"

namespace fenwick {

class JobFolders {
public:
    JobFolders(std::filesystem::path data, std::vector<std::filesystem::path> roots);

    [[nodiscard]] const std::filesystem::path& data() const { return data_; }
    [[nodiscard]] std::filesystem::path upload_folder(const std::string& id) const { return data_ / "uploads" / id; }
    [[nodiscard]] std::filesystem::path output_path(const std::string& job_id) const {
        return data_ / "jobs" / job_id / "output";
    }

    /// The output folder of a job that is not over, locked; shared by all that work on it.
    [[nodiscard]] std::shared_ptr<OutputFolder> output(const std::string& job_id);
    /// The finisher has written the result.
    void forget_output(const std::string& job_id);

    /// All files of it, which is no job of the store.
    void remove_job(const std::string& job_id);

    /// Throws ServiceFault PERMISSION_DENIED for a path of the spec outside the roots, INVALID_ARGUMENT for one that is
    /// not absolute and for documents without content or id.
    void check_sources(const idl::JobSpec& spec) const;
    /// The documents of the spec, in order. Paths that rows name are held to the roots too. Throws what list_documents
    /// throws, and UnavailableError.
    [[nodiscard]] std::vector<DocumentRef> list(const StoredJob& job);

    /// Opens a document's tokens as its job says. Throws DataError, UnavailableError.
    [[nodiscard]] std::unique_ptr<TokenReader> open(const StoredJob& job, const DocumentRef& document,
                                                    const ModelFacts& model, const Tokenizer& tokenizer);

    /// Text for clients: without the folders above, so that an upload is called what its owner called it.
    [[nodiscard]] std::string for_client(const std::string& job_id, std::string text) const;
    [[nodiscard]] DocumentRef for_client(const std::string& job_id, DocumentRef document) const;

private:
    [[nodiscard]] std::vector<std::filesystem::path> write_inputs(const StoredJob& job) const;
    [[nodiscard]] std::filesystem::path source_path(const idl::DocumentSource& source) const;

    std::filesystem::path data_;
    std::vector<std::filesystem::path> roots_;
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<OutputFolder>> outputs_;
};

}  // namespace fenwick
