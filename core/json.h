// JSON files, and configurations read field by field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fenwick {

/// Parses `text`. Published configurations hold the bare words Infinity, -Infinity and NaN; outside strings these
/// become the double values. Throws DataError naming `source` and the byte for text that is no JSON, an object that has
/// a key twice, or nesting deeper than 64.
[[nodiscard]] nlohmann::json parse_json(std::string text, const std::string& source);
/// The same for a file of at most `limit` bytes; `source` is the path.
[[nodiscard]] nlohmann::json read_json_file(const std::filesystem::path& path,
                                            std::int64_t limit = std::int64_t{64} << 20);

/// `text` in double quotes, control bytes escaped, cut to 120 bytes: names from files in messages.
[[nodiscard]] std::string in_quotes(std::string_view text);

/// Typed access to the fields of one JSON object. A field that is absent or null takes the default; one of another
/// type, or a required one that is absent or null, is a ConfigError naming file, field, expected and found.
class ConfigReader {
public:
    /// Throws ConfigError when `object` is no JSON object. `source` goes into messages.
    ConfigReader(nlohmann::json object, std::string source);
    [[nodiscard]] static ConfigReader open(const std::filesystem::path& path);

    [[nodiscard]] const std::string& source() const { return source_; }
    [[nodiscard]] const nlohmann::json& json() const { return object_; }
    [[nodiscard]] bool has(std::string_view name) const;      ///< present, null or not
    [[nodiscard]] bool is_null(std::string_view name) const;  ///< absent, or present and null

    [[nodiscard]] std::int64_t get_int(std::string_view name, std::int64_t default_value) const;
    [[nodiscard]] std::int64_t require_int(std::string_view name) const;
    [[nodiscard]] double get_double(std::string_view name, double default_value) const;  ///< integers too
    [[nodiscard]] double require_double(std::string_view name) const;
    [[nodiscard]] bool get_bool(std::string_view name, bool default_value) const;
    [[nodiscard]] std::string get_string(std::string_view name, std::string_view default_value) const;
    [[nodiscard]] std::string require_string(std::string_view name) const;
    [[nodiscard]] std::vector<nlohmann::json> get_array(std::string_view name) const;  ///< empty by default
    [[nodiscard]] std::vector<double> get_doubles(std::string_view name) const;        ///< empty by default
    [[nodiscard]] std::vector<std::int64_t> get_ints(std::string_view name) const;     ///< empty by default
    /// An object within; its messages name the field as "outer.inner". Nothing when absent or null.
    [[nodiscard]] std::optional<ConfigReader> get_object(std::string_view name) const;

    /// A ConfigError about one field: "FILE: field \"name\": expected EXPECTED, found VALUE". For the caller's own
    /// checks.
    [[noreturn]] void fail(std::string_view name, std::string_view expected) const;

private:
    [[nodiscard]] const nlohmann::json* find(std::string_view name) const;  // null: absent or JSON null
    [[nodiscard]] const nlohmann::json& require(std::string_view name, std::string_view expected) const;
    std::int64_t to_int(std::string_view name, const nlohmann::json& value) const;
    double to_double(std::string_view name, const nlohmann::json& value) const;

    nlohmann::json object_;
    std::string source_;
    std::string prefix_;
};

}  // namespace fenwick
