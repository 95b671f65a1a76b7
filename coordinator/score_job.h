// A whole scoring run: documents in, rows and losses out. Lives on rank 0; the gang is lent to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator/document_run.h"
#include "coordinator/job_identity.h"
#include "coordinator/output_folder.h"
#include "coordinator/row_journal.h"
#include "coordinator/score_options.h"
#include "core/documents.h"
#include "core/tokenizer.h"
#include "worker/model.h"

namespace fenwick {

/// What a run comes to; sums are over completed documents.
struct ScoreReport {
    std::int64_t documents = 0;
    std::int64_t completed = 0;
    std::int64_t failed = 0;
    std::int64_t reused = 0;  ///< completed by an earlier run
    std::int64_t tokens = 0;
    std::int64_t scored_tokens = 0;
    double nll_sum = 0;
    std::optional<double> bits_per_byte;  ///< over the documents whose bytes are known
    double seconds = 0;                   ///< of computing, by this run and earlier ones
    bool levels_extended = false;
    bool already_complete = false;  ///< nothing was left to do

    [[nodiscard]] ExitCode exit_code() const { return failed > 0 ? ExitCode::kSomeDocumentsFailed : ExitCode::kDone; }
};

class ScoreJob {
public:
    /// Lists the inputs, takes the output folder and learns what an earlier run finished. Nothing is computed yet.
    /// Throws UsageError, ConfigError, DataError (a whole input cannot be used), UnavailableError.
    ScoreJob(const ScoreOptions& options, const Execution& execution, int ranks, std::shared_ptr<const Model> model);

    /// Scores what is not finished. Throws InterruptedError (saved), UnavailableError (disk, memory, a rank).
    void run(LedGang& gang);

    /// Writes results.jsonl, errors.jsonl and last manifest.json, removes the work files. Call once, after `run`.
    [[nodiscard]] ScoreReport finish();

private:
    /// A row of an earlier run that still holds if the input's hash is the same.
    struct EarlierRow {
        std::string input_hash;
        std::string line;
    };

    void read_earlier_rows();
    [[nodiscard]] bool is_usable(const Row& row) const;
    [[nodiscard]] Row row_of(std::int64_t index, LedGang& gang);
    [[nodiscard]] Row score(std::int64_t index, const TokenReader& reader, const std::string& input_hash,
                            LedGang& gang);
    [[nodiscard]] std::optional<Row> earlier_row(const DocumentRef& document, const std::string& input_hash);
    [[nodiscard]] std::unique_ptr<TokenReader> open(const DocumentRef& document) const;
    void remove_losses(const DocumentRef& document) const;
    [[nodiscard]] bool claim_losses(const DocumentRef& document, std::int64_t scored_tokens) const;
    void account(const Row& row);

    ScoreOptions options_;
    Execution execution_;
    int ranks_;
    std::shared_ptr<const Model> model_;
    std::unique_ptr<Tokenizer> tokenizer_;
    std::vector<DocumentRef> documents_;
    PassSettings passes_;
    JobIdentity identity_;
    std::unique_ptr<OutputFolder> folder_;
    std::unique_ptr<RowJournal> journal_;
    std::unique_ptr<Progress> progress_;
    std::unordered_map<std::string, EarlierRow> earlier_;
    std::vector<std::string> result_lines_;
    std::vector<std::string> error_lines_;
    std::vector<std::string> nll_files_;
    ScoreReport report_;
    std::int64_t known_bytes_ = 0;
    double known_bytes_nll_ = 0;
    bool said_extended_ = false;
    bool was_complete_ = false;
};

}  // namespace fenwick
