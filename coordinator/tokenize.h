// From documents to one token file (core/token_file.h), for training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/errors.h"

namespace fenwick {

struct TokenizeOptions {
    std::vector<std::filesystem::path> inputs;  ///< as of `score`: text, .jsonl, ready ids
    std::filesystem::path output;               ///< the token file
    std::string tokenizer = "bytes";            ///< "bytes", or the path of a SentencePiece model
    std::int64_t vocab_size = 0;                ///< 0: the tokenizer's
    std::int64_t eos_id = -1;                   ///< put after each document; -1: nothing
    bool overwrite = false;
    bool silent = false;  ///< no progress
};

struct TokenizeFailure {
    std::string custom_id;
    std::string message;
};

struct TokenizeReport {
    std::int64_t documents = 0;  ///< in the file
    std::int64_t tokens = 0;
    std::int64_t text_bytes = -1;  ///< -1: not known
    std::int64_t file_bytes = 0;
    std::int64_t vocab_size = 0;
    int id_bytes = 0;
    bool masked = false;  ///< the file says which tokens are targets
    std::string tokenizer;
    std::string hash;
    double seconds = 0;
    std::vector<TokenizeFailure> failures;  ///< documents that are bad, and why; nothing of them is in the file

    [[nodiscard]] ExitCode exit_code() const {
        return failures.empty() ? ExitCode::kDone : ExitCode::kSomeDocumentsFailed;
    }
};

/// Writes all documents that can be read, in order; the file appears whole or not at all. Memory does not grow with the
/// size of documents. Throws UsageError for an output that is there already (unless `overwrite`), an EOS outside the
/// vocabulary or a vocabulary smaller than the tokenizer's, DataError when a file changes while it is read,
/// UnavailableError when the disk fails, InterruptedError after a stop signal (nothing is left).
TokenizeReport tokenize_documents(const TokenizeOptions& options);

}  // namespace fenwick
