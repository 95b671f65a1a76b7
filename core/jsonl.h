// JSONL inputs: lines of any length up to a limit, and the rows they hold. A row is an object with a `custom_id`
// (string or number) and exactly one of `text` (string), `path` (a file, relative to the JSONL file's folder) and
// `tokens` (integers). With `tokens` may come `targets`, the places in it that a training loss is taken of.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.h"
#include "core/tokenizer.h"

namespace fenwick {

/// Longest line that is read; a longer one is an error of that line alone.
inline constexpr std::int64_t kMaxJsonlLineBytes = std::int64_t{256} << 20;

struct JsonlLine {
    std::int64_t number = 0;  ///< counted from 1, blank lines included
    std::int64_t offset = 0;  ///< bytes [offset, offset + length) of the file, without the newline
    std::int64_t length = 0;
};

/// Calls `visit` for every line that is not blank (blank: spaces, tabs, carriage returns only), in order. Reads the
/// file once; no line is held in memory, and pages that were read are given back.
void for_each_jsonl_line(const MappedFile& file, const std::function<void(const JsonlLine&)>& visit);

enum class RowContent { kNone, kText, kPath, kTokens };

struct JsonlRow {
    std::string error;  ///< not empty: why the row is bad (field, or byte from 0; expected, found); the rest is what
                        ///< was read before
    bool has_id = false;
    std::string custom_id;  ///< a number as it is written
    RowContent content = RowContent::kNone;
    std::string value;  ///< the text or path; empty when `keep_text` is false and it is a text
    bool has_targets = false;
    std::vector<bool> targets;                ///< [tokens]; empty without `has_targets`, or when `keep_text` is false
    std::vector<std::string> unknown_fields;  ///< each name once
};

/// Parses and checks one row. `tokens`, when given, takes the ids as they come; without it they are only checked. An id
/// that does not fit int32 is an error. Never throws for bad rows.
[[nodiscard]] JsonlRow parse_jsonl_row(std::string_view row, bool keep_text, const TokenSink& tokens = {});

}  // namespace fenwick
