#include "core/json.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <set>
#include <utility>

#include "core/errors.h"
#include "core/files.h"

namespace fenwick {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr std::size_t kQuotedBytes = 120;

/// A bare number word, replaced in the text by a string of the same length; `ordinal` counts the text's strings.
struct BareNumber {
    std::size_t ordinal;
    double value;
};

constexpr std::array<std::pair<std::string_view, double>, 3> kBareWords = {{
    {"-Infinity", -std::numeric_limits<double>::infinity()},
    {"Infinity", std::numeric_limits<double>::infinity()},
    {"NaN", std::numeric_limits<double>::quiet_NaN()},
}};

/// Makes strict JSON of `text`. Byte positions stay, so that messages of the parser point to the right place.
std::vector<BareNumber> replace_bare_numbers(std::string& text) {
    std::vector<BareNumber> found;
    std::size_t strings = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') {
                ++i;
            } else if (c == '"') {
                in_string = false;
            }
            continue;
        }
        if (c == '"') {
            in_string = true;
            ++strings;
            continue;
        }
        if (c != '-' && c != 'I' && c != 'N') continue;
        for (const auto& [word, value] : kBareWords) {
            if (text.compare(i, word.size(), word) != 0) continue;
            text.replace(i, word.size(), '"' + std::string(word.size() - 2, '#') + '"');
            found.push_back({strings++, value});
            i += word.size() - 1;
            break;
        }
    }
    return found;
}

/// Watches the parse: depth, keys that come twice, and the strings that stand for bare numbers.
class ParseWatch {
public:
    ParseWatch(std::vector<BareNumber> numbers, const std::string& source)
        : numbers_(std::move(numbers)), source_(source) {}

    bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
        switch (event) {
            case Json::parse_event_t::object_start:
                check_depth(depth);
                keys_.emplace_back();
                break;
            case Json::parse_event_t::array_start:
                check_depth(depth);
                break;
            case Json::parse_event_t::object_end:
                keys_.pop_back();
                break;
            case Json::parse_event_t::key:
                if (take_number() != nullptr) throw DataError(source_ + ": a bare number word cannot be a key");
                if (!keys_.back().insert(parsed.get<std::string>()).second) {
                    throw DataError(fmt::format("{}: key {} comes twice in one object", source_,
                                                in_quotes(parsed.get_ref<const std::string&>())));
                }
                break;
            case Json::parse_event_t::value:
                if (!parsed.is_string()) break;
                if (const BareNumber* number = take_number(); number != nullptr) parsed = number->value;
                break;
            case Json::parse_event_t::array_end:
                break;
        }
        return true;
    }

private:
    void check_depth(int depth) const {
        if (depth >= kMaxDepth) throw DataError(fmt::format("{}: JSON nested deeper than {}", source_, kMaxDepth));
    }
    const BareNumber* take_number() {
        const std::size_t ordinal = strings_++;
        if (next_ == numbers_.size() || numbers_[next_].ordinal != ordinal) return nullptr;
        return &numbers_[next_++];
    }

    std::vector<BareNumber> numbers_;
    const std::string& source_;
    std::vector<std::set<std::string>> keys_;
    std::size_t strings_ = 0;
    std::size_t next_ = 0;
};

std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > kQuotedBytes) text = text.substr(0, kQuotedBytes) + "...";
    return text;
}

}  // namespace

std::string in_quotes(std::string_view text) {
    const bool cut = text.size() > kQuotedBytes;
    const Json value(std::string(text.substr(0, kQuotedBytes)));
    return value.dump(-1, ' ', true, Json::error_handler_t::replace) + (cut ? "..." : "");
}

Json parse_json(std::string text, const std::string& source) {
    ParseWatch watch(replace_bare_numbers(text), source);
    try {
        return Json::parse(text, std::ref(watch));
    } catch (const Json::parse_error& error) {
        throw DataError(fmt::format("{}: no valid JSON at byte {}: {}", source, error.byte,
                                    in_quotes(std::string_view(error.what()).substr(0, kQuotedBytes))));
    } catch (const Json::exception& error) {
        throw DataError(fmt::format("{}: no valid JSON: {}", source, error.what()));
    }
}

Json read_json_file(const std::filesystem::path& path, std::int64_t limit) {
    return parse_json(read_text_file(path, limit), path.string());
}

ConfigReader::ConfigReader(Json object, std::string source) : object_(std::move(object)), source_(std::move(source)) {
    if (!object_.is_object()) {
        throw ConfigError(fmt::format("{}: expected a JSON object, found {}", source_, shown(object_)));
    }
}

ConfigReader ConfigReader::open(const std::filesystem::path& path) {
    return {read_json_file(path), path.string()};
}

void ConfigReader::fail(std::string_view name, std::string_view expected) const {
    const auto it = object_.find(name);
    throw ConfigError(fmt::format("{}: field \"{}{}\": expected {}, found {}", source_, prefix_, name, expected,
                                  it == object_.end() ? "no such field" : shown(*it)));
}

bool ConfigReader::has(std::string_view name) const {
    return object_.contains(name);
}

bool ConfigReader::is_null(std::string_view name) const {
    return find(name) == nullptr;
}

const Json* ConfigReader::find(std::string_view name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const Json& ConfigReader::require(std::string_view name, std::string_view expected) const {
    const Json* value = find(name);
    if (value == nullptr) fail(name, expected);
    return *value;
}

std::int64_t ConfigReader::to_int(std::string_view name, const Json& value) const {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!value.is_number_integer()) fail(name, "an integer");
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > kMax) fail(name, "an integer of at most 63 bits");
    return value.get<std::int64_t>();
}

double ConfigReader::to_double(std::string_view name, const Json& value) const {
    if (!value.is_number()) fail(name, "a number");
    return value.get<double>();
}

std::int64_t ConfigReader::get_int(std::string_view name, std::int64_t default_value) const {
    const Json* value = find(name);
    return value == nullptr ? default_value : to_int(name, *value);
}

std::int64_t ConfigReader::require_int(std::string_view name) const {
    return to_int(name, require(name, "an integer"));
}

double ConfigReader::get_double(std::string_view name, double default_value) const {
    const Json* value = find(name);
    return value == nullptr ? default_value : to_double(name, *value);
}

double ConfigReader::require_double(std::string_view name) const {
    return to_double(name, require(name, "a number"));
}

bool ConfigReader::get_bool(std::string_view name, bool default_value) const {
    const Json* value = find(name);
    if (value == nullptr) return default_value;
    if (!value->is_boolean()) fail(name, "true or false");
    return value->get<bool>();
}

std::string ConfigReader::get_string(std::string_view name, std::string_view default_value) const {
    return find(name) == nullptr ? std::string(default_value) : require_string(name);
}

std::string ConfigReader::require_string(std::string_view name) const {
    const Json& value = require(name, "a string");
    if (!value.is_string()) fail(name, "a string");
    return value.get<std::string>();
}

std::vector<Json> ConfigReader::get_array(std::string_view name) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_array()) fail(name, "an array");
    return value->get<std::vector<Json>>();
}

std::vector<double> ConfigReader::get_doubles(std::string_view name) const {
    std::vector<double> values;
    for (const Json& value : get_array(name)) {
        if (!value.is_number()) fail(name, "an array of numbers");
        values.push_back(to_double(name, value));
    }
    return values;
}

std::vector<std::int64_t> ConfigReader::get_ints(std::string_view name) const {
    std::vector<std::int64_t> values;
    for (const Json& value : get_array(name)) {
        if (!value.is_number_integer()) fail(name, "an array of integers");
        values.push_back(to_int(name, value));
    }
    return values;
}

std::optional<ConfigReader> ConfigReader::get_object(std::string_view name) const {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_object()) fail(name, "an object");
    ConfigReader inner(*value, source_);
    inner.prefix_ = fmt::format("{}{}.", prefix_, name);
    return inner;
}

}  // namespace fenwick
