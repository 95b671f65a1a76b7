#include "coordinator/manifest.h"

#include <nlohmann/json.hpp>

#include "coordinator/build_info.h"
#include "coordinator/format_version.h"
#include "coordinator/score_options.h"
#include "core/files.h"
#include "core/hash.h"

namespace fenwick {
namespace {

using Json = nlohmann::ordered_json;

Json describe_file(const std::filesystem::path& folder, const std::string& name) {
    const MappedFile file = MappedFile::open(folder / name, EmptyFile::kAllow);
    file.advise(Access::kSequential);
    Json entry;
    entry["name"] = name;
    entry["bytes"] = file.size();
    entry["xxh3"] = hash_of(file);
    return entry;
}

Json pass_text(std::optional<std::int64_t> tokens) {
    if (!tokens) return nullptr;
    return *tokens == kUnlimitedPass ? Json("unlimited") : Json(*tokens);
}

}  // namespace

void write_manifest(const std::filesystem::path& folder, const std::filesystem::path& file, const Manifest& manifest) {
    Json json;
    json["format_version"] = kOutputFormatVersion;
    json["fenwick_version"] = build_info::kVersion;
    Json& model = json["model"];
    model["hash"] = manifest.identity.model_hash;
    model["family"] = manifest.family;
    model["parameters"] = manifest.parameters;
    Json& run = json["parameters"];
    run["tokenizer"] = manifest.identity.tokenizer;
    run["bos"] = manifest.identity.bos;
    run["device"] = manifest.identity.device;
    run["dtype"] = manifest.identity.dtype;
    run["levels"] = manifest.identity.levels;
    run["ranks"] = manifest.ranks ? Json(*manifest.ranks) : Json(nullptr);
    run["pass_tokens"] = pass_text(manifest.pass_tokens);
    Json& counts = json["counts"];
    counts["documents"] = manifest.documents;
    counts["completed"] = manifest.completed;
    counts["failed"] = manifest.failed;
    Json files = Json::array();
    for (const std::string& name : manifest.files) files.push_back(describe_file(folder, name));
    json["files"] = std::move(files);
    write_file_atomically(file, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void write_lines(const std::filesystem::path& path, const std::vector<std::string>& lines) {
    AtomicFile file(path);
    for (const std::string& line : lines) file.write(bytes_of(line + "\n"));
    file.commit();
}

}  // namespace fenwick
