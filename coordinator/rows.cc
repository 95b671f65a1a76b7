#include "coordinator/rows.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

namespace fenwick {
namespace {

/// JSON has no NaN and no infinity: what is not known or not finite is null.
Row number_or_null(std::optional<double> value) {
    return value && std::isfinite(*value) ? Row(*value) : Row(nullptr);
}

}  // namespace

Row completed_row(const ScoredDocument& document) {
    std::optional<double> mean;
    std::optional<double> perplexity;
    std::optional<double> bits_per_byte;
    std::optional<double> rate;
    if (document.scored_tokens > 0) {
        mean = document.nll_sum / static_cast<double>(document.scored_tokens);
        perplexity = std::exp(*mean);
        if (document.scored_bytes > 0) {
            bits_per_byte = document.nll_sum / std::numbers::ln2 / static_cast<double>(document.scored_bytes);
        }
    }
    if (document.seconds > 0) rate = static_cast<double>(document.tokens) / document.seconds;
    Row row;
    row["custom_id"] = document.custom_id;
    row["status"] = "completed";
    row["tokens"] = document.tokens;
    row["scored_tokens"] = document.scored_tokens;
    row["nll_sum"] = document.nll_sum;
    row["nll_mean"] = number_or_null(mean);
    row["perplexity"] = number_or_null(perplexity);
    row["bits_per_byte"] = number_or_null(bits_per_byte);
    row["levels_extended"] = document.levels_extended;
    row["nll_file"] = document.nll_file;
    row["seconds"] = document.seconds;
    row["tokens_per_second"] = number_or_null(rate);
    row["ranks"] = document.ranks;
    row["device"] = document.device;
    row["dtype"] = document.dtype;
    row["model_hash"] = document.model_hash;
    row["input_hash"] = document.input_hash;
    return row;
}

Row failed_row(const DocumentRef& document, const DocumentFailure& failure, const std::string& input_hash) {
    Row row;
    row["custom_id"] = document.custom_id;
    row["status"] = "failed";
    row["source"] = document.source.string();
    row["line"] = document.line > 0 ? Row(document.line) : Row(nullptr);
    row["code"] = failure.code_name();
    row["message"] = failure.what();
    row["input_hash"] = input_hash.empty() ? Row(nullptr) : Row(input_hash);
    return row;
}

std::int64_t scored_bytes(const TokenReader& reader, TokenizerKind kind, bool bos) {
    const std::int64_t bytes = reader.text_bytes();
    if (bytes < 0) return -1;
    if (kind != TokenizerKind::kBytes || bos) return bytes;
    return std::max<std::int64_t>(bytes - 1, 0);
}

std::string to_line(const Row& row) {
    return row.dump(-1, ' ', false, Row::error_handler_t::replace);
}

bool is_completed_row(const Row& row) {
    const auto has = [&](const char* name, auto check) { return row.contains(name) && check(row.at(name)); };
    const auto text = [](const Row& field) { return field.is_string(); };
    const auto count = [](const Row& field) { return field.is_number_integer() && field.get<std::int64_t>() >= 0; };
    return row.is_object() && has("custom_id", text) && has("status", text) && row.at("status") == "completed" &&
           has("tokens", count) && has("scored_tokens", count) && has("nll_file", text) && has("dtype", text) &&
           has("model_hash", text) && has("input_hash", text) &&
           has("nll_sum", [](const Row& field) { return field.is_number(); }) &&
           has("levels_extended", [](const Row& field) { return field.is_boolean(); });
}

}  // namespace fenwick
