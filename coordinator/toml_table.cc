#include "coordinator/toml_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "core/errors.h"

namespace fenwick {

namespace fs = std::filesystem;

toml::table parse_toml_file(const fs::path& file) {
    try {
        return toml::parse_file(file.string());
    } catch (const toml::parse_error& error) {
        throw ConfigError(fmt::format("{} line {}: {}", file.string(), error.source().begin.line, error.description()));
    }
}

void TomlTable::fail(const std::string& key, const std::string& expected) const {
    const toml::node* node = find(key);
    std::string found = "nothing";
    if (node != nullptr) {
        std::ostringstream text;
        node->visit([&](const auto& value) { text << value; });
        found = fmt::format("{} (line {})", text.str(), node->source().begin.line);
    }
    throw ConfigError(fmt::format("{}: {}{}: expected {}, found {}", file_.string(), prefix(), key, expected, found));
}

template <class Value>
void TomlTable::get(const std::string& key, Value& value, const std::string& expected) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const auto found = node->value_exact<Value>();
    if (!found) fail(key, expected);
    value = *found;
}

void TomlTable::read(const std::string& key, std::string& value) {
    get(key, value, "a text in quotes");
}

void TomlTable::read(const std::string& key, bool& value) {
    get(key, value, "true or false");
}

fs::path TomlTable::located(const std::string& text) const {
    if (text.empty() || text.front() == '/') return text;
    return fs::absolute(file_).parent_path() / text;
}

void TomlTable::read(const std::string& key, fs::path& value) {
    if (find(key) == nullptr) return;
    std::string text;
    get(key, text, "a path in quotes");
    value = located(text);
}

void TomlTable::read(const std::string& key, std::int64_t& value, std::int64_t least, std::int64_t most) {
    const std::string expected = fmt::format("a whole number from {} to {}", least, most);
    get(key, value, expected);
    if (value < least || value > most) fail(key, expected);
}

void TomlTable::read(const std::string& key, double& value, double least, double most) {
    const std::string expected = fmt::format("a number from {} to {}", least, most);
    if (const toml::node* node = find(key)) {
        const auto number = node->value<double>();
        if (!number) fail(key, expected);
        value = *number;
    }
    if (!(value >= least && value <= most)) fail(key, expected);
}

void TomlTable::read(const std::string& key, std::vector<fs::path>& paths) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const toml::array* array = node->as_array();
    if (array == nullptr) fail(key, "a list of paths");
    for (const toml::node& each : *array) {
        const auto path = each.value<std::string>();
        if (!path || path->empty() || path->front() != '/') fail(key, "a list of absolute paths");
        paths.emplace_back(*path);
    }
}

void TomlTable::read_files(const std::string& key, std::vector<fs::path>& paths) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const toml::array* array = node->as_array();
    if (array == nullptr) fail(key, "a list of paths");
    for (const toml::node& each : *array) {
        const auto path = each.value<std::string>();
        if (!path || path->empty()) fail(key, "a list of paths");
        paths.push_back(located(*path));
    }
}

void TomlTable::read_numbers(const std::string& key, std::vector<double>& values) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const toml::array* array = node->as_array();
    if (array == nullptr) fail(key, "a list of numbers");
    values.clear();
    for (const toml::node& each : *array) {
        const auto number = each.value<double>();
        if (!number) fail(key, "a list of numbers");
        values.push_back(*number);
    }
}

TomlTable TomlTable::under(const std::string& key) {
    const toml::node* node = find(key);
    if (node != nullptr && !node->is_table()) fail(key, "a table");
    return {node == nullptr ? nullptr : node->as_table(), prefix() + key, file_};
}

const toml::array* TomlTable::tables(const std::string& key) {
    const toml::node* node = find(key);
    if (node == nullptr) return nullptr;
    if (!node->is_array_of_tables()) fail(key, fmt::format("[[{}{}]] tables", prefix(), key));
    return node->as_array();
}

void TomlTable::refuse_others() const {
    if (table_ == nullptr) return;
    for (const auto& [key, node] : *table_) {
        const std::string text(key.str());
        if (known_.count(text) != 0) continue;
        throw ConfigError(fmt::format("{} line {}: {}{}: no such key; known here: {}", file_.string(),
                                      node.source().begin.line, prefix(), text, fmt::join(known_, ", ")));
    }
}

const toml::node* TomlTable::find(const std::string& key) const {
    known_.insert(key);
    return table_ == nullptr ? nullptr : table_->get(key);
}

}  // namespace fenwick
