#include "core/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/errors.h"
#include "core/json.h"

namespace fenwick {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";

/// Takes the parser's events one by one; any event that the format does not have at that place stops the parse. Depth 1
/// is the header, 2 a tensor or the metadata, 3 a list of numbers: nothing nests deeper, so nothing can grow.
class HeaderHandler : public nlohmann::json_sax<Json> {
public:
    SafetensorsHeader header;
    std::string reason;

    bool null() override { return refuse("null has no place here"); }
    bool boolean(bool /*value*/) override { return refuse("true or false has no place here"); }
    bool number_integer(number_integer_t value) override { return refuse(fmt::format("negative number {}", value)); }
    bool number_float(number_float_t /*value*/, const string_t& text) override {
        return refuse(fmt::format("number {} is no 63-bit integer", in_quotes(text)));
    }
    bool binary(binary_t& /*value*/) override { return refuse("binary value"); }

    bool number_unsigned(number_unsigned_t value) override {
        if (depth_ != 3) return refuse("a number has no place here");
        if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
            return refuse(fmt::format("number {} is no 63-bit integer", value));
        }
        if (field_ == "data_offsets" && offsets_.size() == 2) return refuse("data_offsets has more than two numbers");
        (field_ == "shape" ? entry_.shape : offsets_).push_back(static_cast<std::int64_t>(value));
        return true;
    }

    bool string(string_t& value) override {
        if (depth_ == 2 && in_metadata_) {
            header.metadata[field_] = std::move(value);
            return true;
        }
        if (depth_ != 2 || field_ != "dtype") return refuse("a string has no place here");
        const auto dtype = parse_dtype(value);
        if (!dtype) return refuse(fmt::format("unknown dtype {}", in_quotes(value)));
        entry_.dtype = *dtype;
        return true;
    }

    bool start_object(std::size_t /*elements*/) override {
        if (depth_ >= 2) return refuse("an object has no place here (nested too deep)");
        ++depth_;
        fields_.clear();
        return true;
    }

    bool key(string_t& value) override {
        if (depth_ == 1) {
            name_ = value;
            in_metadata_ = name_ == kMetadataKey;
            if (!names_.insert(value).second) return refuse("the name comes twice");
            entry_ = {};
            offsets_.clear();
            return true;
        }
        if (!fields_.insert(value).second) return refuse(fmt::format("field {} comes twice", in_quotes(value)));
        if (!in_metadata_ && value != "dtype" && value != "shape" && value != "data_offsets") {
            return refuse(fmt::format("unknown field {}", in_quotes(value)));
        }
        field_ = std::move(value);
        return true;
    }

    bool end_object() override {
        --depth_;
        if (depth_ != 1 || in_metadata_) return true;
        if (fields_.size() != 3) return refuse("needs dtype, shape and data_offsets");
        if (offsets_.size() != 2) return refuse("data_offsets needs two numbers");
        entry_.name = name_;
        entry_.begin = offsets_[0];
        entry_.end = offsets_[1];
        header.entries.push_back(std::move(entry_));
        return true;
    }

    bool start_array(std::size_t /*elements*/) override {
        if (depth_ != 2 || in_metadata_ || field_ == "dtype") return refuse("an array has no place here");
        ++depth_;
        return true;
    }

    bool end_array() override {
        --depth_;
        return true;
    }

    bool parse_error(std::size_t position, const std::string& /*token*/,
                     const nlohmann::detail::exception& /*error*/) override {
        reason = fmt::format("no valid JSON at byte {} of the header", position);
        return false;
    }

private:
    bool refuse(const std::string& why) {
        const bool inside = depth_ >= 1 && !name_.empty();
        reason = inside ? fmt::format("{} {}: {}", in_metadata_ ? "entry" : "tensor", in_quotes(name_), why) : why;
        return false;
    }

    int depth_ = 0;
    bool in_metadata_ = false;
    std::string name_;   // key at depth 1
    std::string field_;  // key at depth 2
    SafetensorsEntry entry_;
    std::vector<std::int64_t> offsets_;
    std::unordered_set<std::string> names_;
    std::unordered_set<std::string> fields_;
};

void check_ranges(const std::vector<SafetensorsEntry>& entries, std::int64_t data_bytes, const std::string& source) {
    std::int64_t cursor = 0;
    for (const SafetensorsEntry& entry : entries) {
        const auto refuse = [&](const std::string& why) {
            throw DataError(fmt::format("{}: tensor {}: {}", source, in_quotes(entry.name), why));
        };
        if (entry.end < entry.begin) refuse(fmt::format("data_offsets [{}, {}] run backwards", entry.begin, entry.end));
        const auto bytes = array_bytes(entry.dtype, entry.shape);
        if (!bytes || *bytes != entry.end - entry.begin) {
            refuse(fmt::format("shape {} of {} needs {} bytes, data_offsets [{}, {}] give {}", shape_text(entry.shape),
                               dtype_name(entry.dtype), bytes ? std::to_string(*bytes) : "more than 2^63", entry.begin,
                               entry.end, entry.end - entry.begin));
        }
        if (entry.end > data_bytes) {
            refuse(fmt::format("its data ends at byte {}, the file has only {} bytes of data: the file was cut short",
                               entry.end, data_bytes));
        }
        if (entry.begin < cursor) {
            refuse(fmt::format("its data starts at byte {} and overlaps the tensor before, which ends at {}",
                               entry.begin, cursor));
        }
        if (entry.begin > cursor) {
            refuse(fmt::format("its data starts at byte {}, leaving a hole from byte {}", entry.begin, cursor));
        }
        cursor = entry.end;
    }
    if (cursor != data_bytes) {
        throw DataError(fmt::format("{}: {} bytes follow the last tensor, none may", source, data_bytes - cursor));
    }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t data_bytes, const std::string& source) {
    if (!text.starts_with('{')) throw DataError(source + ": the header does not start with '{': no safetensors file");
    HeaderHandler handler;
    if (!Json::sax_parse(text.begin(), text.end(), &handler)) {
        throw DataError(fmt::format("{}: bad header: {}", source, handler.reason));
    }
    SafetensorsHeader header = std::move(handler.header);
    std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
        return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    check_ranges(header.entries, data_bytes, source);
    return header;
}

}  // namespace fenwick
