#include "core/jsonl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/json.h"
#include "core/map_pages.h"

namespace fenwick {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kTokenBatch = 4096;
constexpr std::size_t kLongRow = std::size_t{16} << 20;
constexpr std::string_view kBlank = " \t\r";

enum class Field { kNone, kId, kText, kPath, kTokens, kTargets, kUnknown };

std::string_view name_of(Field field) {
    switch (field) {
        case Field::kId:
            return "custom_id";
        case Field::kText:
            return "text";
        case Field::kPath:
            return "path";
        case Field::kTokens:
            return "tokens";
        case Field::kTargets:
            return "targets";
        case Field::kNone:
        case Field::kUnknown:
            break;
    }
    return "";
}

std::string_view expected_by(Field field) {
    switch (field) {
        case Field::kId:
            return "a string or a number";
        case Field::kTokens:
        case Field::kTargets:
            return "an array of integers";
        default:
            return "a string";
    }
}

/// Receives the parser's events. The first wrong field is remembered and the parse goes on, so that the row's id is
/// found wherever it stands.
class RowHandler final : public nlohmann::json_sax<Json> {
public:
    /// `longest`: bytes of the row; no row of that length has more tokens.
    RowHandler(bool keep_text, const TokenSink& sink, std::size_t longest, JsonlRow& row)
        : keep_text_(keep_text), sink_(sink), longest_(static_cast<std::int64_t>(longest)), row_(row) {}

    bool null() override { return scalar("null"); }
    bool boolean(bool /*value*/) override { return scalar("true or false"); }
    bool number_integer(number_integer_t value) override { return integer(value, fmt::to_string(value)); }
    bool number_unsigned(number_unsigned_t value) override {
        const bool fits = value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
        return integer(fits ? static_cast<std::int64_t>(value) : std::numeric_limits<std::int64_t>::max(),
                       fmt::to_string(value));
    }
    bool number_float(number_float_t /*value*/, const string_t& written) override {
        if (at_field(Field::kId)) return set_id(written);
        return scalar("the number " + written);
    }
    bool string(string_t& value) override {
        if (at_field(Field::kId)) return set_id(std::move(value));
        if (at_field(Field::kText) || at_field(Field::kPath)) {
            if (keep_text_ || field_ == Field::kPath) row_.value = std::move(value);
            return set_content(field_ == Field::kText ? RowContent::kText : RowContent::kPath);
        }
        return scalar("a string");
    }
    bool binary(binary_t& /*value*/) override { return scalar("binary data"); }

    bool start_object(std::size_t /*elements*/) override {
        if (depth_ > 0) scalar("an object");
        ++depth_;
        return true;
    }
    bool key(string_t& name) override {
        if (depth_ == 1) take_key(name);
        return true;
    }
    bool end_object() override {
        --depth_;
        return true;
    }
    bool start_array(std::size_t /*elements*/) override {
        if (at_field(Field::kTokens)) {
            array_ = Field::kTokens;
            set_content(RowContent::kTokens);
        } else if (at_field(Field::kTargets)) {
            array_ = Field::kTargets;
            if (row_.has_targets) fail("field \"targets\" comes twice");
            row_.has_targets = true;
            place_ = 0;
        } else {
            scalar("an array");
        }
        ++depth_;
        return true;
    }
    bool end_array() override {
        --depth_;
        if (array_ != Field::kNone && depth_ == 1) {
            array_ = Field::kNone;
            flush();
        }
        return true;
    }
    bool parse_error(std::size_t position, const std::string& /*last_token*/, const Json::exception& error) override {
        std::string_view reason = error.what();
        if (const auto at = reason.find(": "); at != std::string_view::npos) reason.remove_prefix(at + 2);
        // The parser quotes what it read last, which may be a whole text or no UTF-8.
        reason = reason.substr(0, reason.find("; last read"));
        row_.error = fmt::format("byte {}: malformed JSON: {}", position > 0 ? position - 1 : 0, reason);
        return false;
    }

    /// What can be said only of the whole row.
    void finish() {
        if (!row_.has_targets) return;
        if (row_.content != RowContent::kTokens) fail("field \"targets\": goes with \"tokens\" alone");
        if (largest_target_ >= tokens_) {
            fail(fmt::format("field \"targets\": expected places below {}, the number of tokens, found {}", tokens_,
                             largest_target_));
        }
        if (keep_text_ && row_.error.empty()) row_.targets.resize(static_cast<std::size_t>(tokens_));
    }

private:
    void fail(std::string message) {
        if (row_.error.empty()) row_.error = std::move(message);
    }
    [[nodiscard]] bool at_field(Field field) const { return depth_ == 1 && field_ == field; }

    void take_key(const std::string& name) {
        field_ = name == "custom_id" ? Field::kId
                 : name == "text"    ? Field::kText
                 : name == "path"    ? Field::kPath
                 : name == "tokens"  ? Field::kTokens
                 : name == "targets" ? Field::kTargets
                                     : Field::kUnknown;
        if (field_ == Field::kUnknown) {
            auto& names = row_.unknown_fields;
            if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
        }
    }
    /// A value that no field of this kind takes, unless it belongs to an unknown field.
    bool scalar(const std::string& found) {
        if (depth_ == 0) {
            fail(fmt::format("expected an object, found {}", found));
        } else if (array_ != Field::kNone) {
            fail(fmt::format("field \"{}\"[{}]: expected an integer, found {}", name_of(array_),
                             array_ == Field::kTokens ? tokens_ : place_, found));
        } else if (depth_ == 1 && field_ != Field::kUnknown) {
            fail(fmt::format("field \"{}\": expected {}, found {}", name_of(field_), expected_by(field_), found));
        }
        return true;
    }
    bool set_id(std::string id) {
        if (row_.has_id) fail("field \"custom_id\" comes twice");
        row_.has_id = true;
        row_.custom_id = std::move(id);
        return true;
    }
    bool set_content(RowContent content) {
        if (row_.content != RowContent::kNone) {
            fail("expected one of \"text\", \"path\" and \"tokens\", found two");
        }
        row_.content = content;
        return true;
    }
    bool integer(std::int64_t value, const std::string& written) {
        if (at_field(Field::kId)) return set_id(written);
        if (array_ == Field::kNone || depth_ != 2) return scalar("the number " + written);
        if (array_ == Field::kTargets) return target(value, written);
        if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) {
            fail(fmt::format("field \"tokens\"[{}]: {} is no token id (it needs more than 32 bits)", tokens_, written));
            value = 0;
        }
        ++tokens_;
        if (!sink_) return true;
        batch_.push_back(static_cast<std::int32_t>(value));
        if (batch_.size() == kTokenBatch) flush();
        return true;
    }
    bool target(std::int64_t place, const std::string& written) {
        if (place < 0 || place >= longest_) {
            fail(fmt::format("field \"targets\"[{}]: expected the place of a token, found {}", place_, written));
        } else {
            largest_target_ = std::max(largest_target_, place);
            const auto index = static_cast<std::size_t>(place);
            if (keep_text_ && index >= row_.targets.size()) row_.targets.resize(index + 1);
            if (keep_text_) row_.targets[index] = true;
        }
        ++place_;
        return true;
    }
    void flush() {
        if (!batch_.empty()) sink_(batch_);
        batch_.clear();
    }

    bool keep_text_;
    const TokenSink& sink_;
    std::int64_t longest_;
    JsonlRow& row_;
    int depth_ = 0;
    Field field_ = Field::kNone;
    Field array_ = Field::kNone;  // kTokens or kTargets while inside it
    std::int64_t tokens_ = 0;
    std::int64_t place_ = 0;  // in "targets"
    std::int64_t largest_target_ = -1;
    std::vector<std::int32_t> batch_;
};

bool is_blank(std::string_view line) {
    return line.find_first_not_of(kBlank) == std::string_view::npos;
}

}  // namespace

void for_each_jsonl_line(const MappedFile& file, const std::function<void(const JsonlLine&)>& visit) {
    constexpr std::int64_t kStretch = std::int64_t{16} << 20;
    const auto* data = reinterpret_cast<const char*>(file.bytes().data());
    file.check_not_cut();
    JsonlLine line{1, 0, 0};
    for (std::int64_t at = 0; line.offset < file.size();) {
        const std::int64_t stretch = std::min(kStretch, file.size() - at);
        const void* newline = stretch == 0 ? nullptr : std::memchr(data + at, '\n', static_cast<std::size_t>(stretch));
        const bool at_end = newline == nullptr && at + stretch == file.size();
        const std::int64_t end = newline == nullptr ? at + stretch : static_cast<const char*>(newline) - data;
        forget_pages(file, at, end - at);
        at = end;
        if (newline == nullptr && !at_end) continue;
        line.length = end - line.offset;
        // A line over the limit is an error whatever is in it, so it need not be looked at.
        const bool blank =
            line.length <= kMaxJsonlLineBytes && is_blank({data + line.offset, static_cast<std::size_t>(line.length)});
        if (!blank) {
            visit(line);
            forget_pages(file, line.offset, line.length);
        }
        line = {line.number + 1, end + 1, 0};
        at = end + 1;
    }
}

JsonlRow parse_jsonl_row(std::string_view row, bool keep_text, const TokenSink& tokens) {
    JsonlRow result;
    if (row.size() > kLongRow) {
        // Spares the parser the copies of a long text that it would make for its message.
        const auto last = row.find_last_not_of(kBlank);
        if (last == std::string_view::npos || row[last] != '}') {
            result.error = fmt::format("byte {}: malformed JSON: the row does not end with '}}'", row.size());
            return result;
        }
    }
    RowHandler handler(keep_text, tokens, row.size(), result);
    if (Json::sax_parse(row.begin(), row.end(), &handler)) handler.finish();
    if (!result.error.empty()) return result;
    if (!result.has_id) {
        result.error = "field \"custom_id\" is missing";
    } else if (result.content == RowContent::kNone) {
        result.error = "expected one of \"text\", \"path\" and \"tokens\", found none";
    }
    return result;
}

}  // namespace fenwick
