// Configuration files in TOML, read key by key. Every mistake is a ConfigError that names file, key, expected and
// found.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace fenwick {

/// Throws ConfigError, with the line, for text that is no TOML, and for a file that cannot be read.
[[nodiscard]] toml::table parse_toml_file(const std::filesystem::path& file);

/// Typed access to one table; a key that nobody asked for is an error at the end (`refuse_others`). A key that is
/// absent leaves the value as it is.
class TomlTable {
public:
    /// `table` may be null: an absent one. `name`: as messages call it, empty at the top. All must outlive this object.
    TomlTable(const toml::table* table, std::string name, const std::filesystem::path& file)
        : table_(table), name_(std::move(name)), file_(file) {}

    /// "FILE: NAME.KEY: expected EXPECTED, found VALUE (line N)", or "found nothing".
    [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

    [[nodiscard]] bool has(const std::string& key) const { return find(key) != nullptr; }
    void read(const std::string& key, std::string& value);
    void read(const std::string& key, bool& value);
    /// A relative path is relative to the folder of the configuration file.
    void read(const std::string& key, std::filesystem::path& value);
    void read(const std::string& key, std::int64_t& value, std::int64_t least, std::int64_t most);
    void read(const std::string& key, double& value, double least, double most);
    /// Absolute paths only.
    void read(const std::string& key, std::vector<std::filesystem::path>& paths);
    /// Paths as those of a single one.
    void read_files(const std::string& key, std::vector<std::filesystem::path>& paths);

    void read_numbers(const std::string& key, std::vector<double>& values);

    [[nodiscard]] TomlTable under(const std::string& key);
    /// The tables of [[KEY]]; null where there are none.
    [[nodiscard]] const toml::array* tables(const std::string& key);
    [[nodiscard]] const toml::table* raw() const { return table_; }

    void refuse_others() const;

private:
    [[nodiscard]] std::string prefix() const { return name_.empty() ? "" : name_ + "."; }
    [[nodiscard]] const toml::node* find(const std::string& key) const;
    [[nodiscard]] std::filesystem::path located(const std::string& text) const;
    template <class Value>
    void get(const std::string& key, Value& value, const std::string& expected);

    const toml::table* table_;
    std::string name_;
    const std::filesystem::path& file_;
    mutable std::set<std::string> known_;
};

}  // namespace fenwick
