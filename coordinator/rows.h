// The rows of results.jsonl and errors.jsonl: one JSON object a document (README.md explains the fields).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "core/documents.h"
#include "core/errors.h"

namespace fenwick {

/// Keeps the order of fields as written.
using Row = nlohmann::ordered_json;

/// A document that was scored.
struct ScoredDocument {
    std::string custom_id;
    std::int64_t tokens = 0;         ///< that the model saw, BOS included
    std::int64_t scored_tokens = 0;  ///< max(tokens - 1, 0)
    double nll_sum = 0;              ///< nats
    std::int64_t scored_bytes = -1;  ///< of text that the scored tokens stand for; -1: not known
    bool levels_extended = false;    ///< longer than what the levels were trained for
    std::string nll_file;            ///< relative to the output folder
    double seconds = 0;              ///< of computing, over all runs that worked on it
    int ranks = 0;
    std::string device;
    std::string dtype;
    std::string model_hash;
    std::string input_hash;
};

/// Why a document has no result. `code` is one of the service's error codes.
class DocumentFailure : public Error {
public:
    DocumentFailure(std::string code, const std::string& message)
        : Error(ExitCode::kSomeDocumentsFailed, message), code_name_(std::move(code)) {}
    [[nodiscard]] const std::string& code_name() const { return code_name_; }

private:
    std::string code_name_;
};

[[nodiscard]] Row completed_row(const ScoredDocument& document);
/// `input_hash`: empty when the content could not be read.
[[nodiscard]] Row failed_row(const DocumentRef& document, const DocumentFailure& failure,
                             const std::string& input_hash);

/// Bytes of text behind the scored tokens, -1 when not known. For bytes the first token, which nothing predicts, does
/// not count unless BOS came before it; SentencePiece tokens have no fixed bytes, so that all of the text counts.
[[nodiscard]] std::int64_t scored_bytes(const TokenReader& reader, TokenizerKind kind, bool bos);

/// One line, without the newline. Bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string to_line(const Row& row);

/// Whether `row` has the fields, of the right types, that a results row needs to be trusted on resume.
[[nodiscard]] bool is_completed_row(const Row& row);

}  // namespace fenwick
