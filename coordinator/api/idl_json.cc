#include "coordinator/api/idl_json.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "coordinator/store/service_fault.h"

namespace fenwick {
namespace {

/// By the generated table of names; a state of a newer version is its number.
std::string lower_name(const std::map<int, const char*>& names, int value) {
    const auto found = names.find(value);
    if (found == names.end()) return std::to_string(value);
    std::string name = found->second;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name;
}

Json time_or_null(std::int64_t time) {
    return time > 0 ? Json(time) : Json();
}

Json number_or_null(double value) {
    return std::isfinite(value) && value >= 0 ? Json(value) : Json();
}

template <class T>
void put_error(Json& json, const T& value) {
    json["error_code"] = value.__isset.errorCode ? Json(name_of(value.errorCode)) : Json();
    json["error_message"] = value.__isset.errorMessage ? Json(value.errorMessage) : Json();
}

}  // namespace

std::string state_name(idl::JobState::type state) {
    return lower_name(idl::_JobState_VALUES_TO_NAMES, state);
}
std::string state_name(idl::DocumentState::type state) {
    return lower_name(idl::_DocumentState_VALUES_TO_NAMES, state);
}
std::string state_name(idl::GangState::type state) {
    return lower_name(idl::_GangState_VALUES_TO_NAMES, state);
}
std::string state_name(idl::RankState::type state) {
    return lower_name(idl::_RankState_VALUES_TO_NAMES, state);
}

bool is_over(idl::JobState::type state) {
    return state == idl::JobState::COMPLETED || state == idl::JobState::FAILED || state == idl::JobState::EXPIRED ||
           state == idl::JobState::CANCELLED;
}

Json to_json(const idl::Usage& usage) {
    return {{"tokens", usage.tokens},
            {"scored_tokens", usage.scoredTokens},
            {"computed_tokens", usage.computedTokens},
            {"rank_seconds", usage.rankSeconds},
            {"gpu_seconds", usage.gpuSeconds},
            {"jobs", usage.jobs},
            {"documents", usage.documents}};
}

Json to_json(const idl::Job& job) {
    const idl::RequestCounts& counts = job.requestCounts;
    Json json;
    json["id"] = job.id;
    json["state"] = state_name(job.state);
    json["name"] = job.name;
    json["client"] = job.client;
    json["request_counts"] = {{"total", counts.total},     {"completed", counts.completed},
                              {"failed", counts.failed},   {"cancelled", counts.cancelled},
                              {"running", counts.running}, {"queued", counts.queued}};
    json["model"] = {{"name", job.model.name}, {"path", job.model.path}, {"hash", job.model.hash}};
    json["priority"] = job.priority;
    json["created_at"] = time_or_null(job.createdAt);
    json["started_at"] = time_or_null(job.startedAt);
    json["finished_at"] = time_or_null(job.finishedAt);
    json["expires_at"] = time_or_null(job.expiresAt);
    json["version"] = job.version;
    json["tokens"] = job.tokens;
    json["tokens_done"] = job.tokensDone;
    json["tokens_per_second"] = number_or_null(job.tokensPerSecond);
    json["eta_seconds"] = number_or_null(job.etaSeconds);
    put_error(json, job);
    json["usage"] = to_json(job.usage);
    json["files"] = job.files;
    json["tokenizer"] = job.tokenizer;
    json["bos"] = job.bos;
    json["levels"] = job.levels;
    json["device"] = job.device;
    json["dtype"] = job.dtype;
    return json;
}

Json to_json(const idl::DocumentResult& document) {
    Json json;
    json["index"] = document.index;
    json["custom_id"] = document.customId;
    json["state"] = state_name(document.state);
    json["tokens"] = document.tokens >= 0 ? Json(document.tokens) : Json();
    json["position"] = document.position;
    json["saved_position"] = document.savedPosition;
    json["attempts"] = document.attempts;
    json["gang"] = document.gang;
    put_error(json, document);
    json["nll_file"] = document.__isset.nllFile ? Json(document.nllFile) : Json();
    json["tokens_per_second"] = number_or_null(document.tokensPerSecond);
    json["eta_seconds"] = number_or_null(document.etaSeconds);
    return json;
}

Json to_json(const idl::GangInfo& gang) {
    Json json;
    json["id"] = gang.id;
    json["name"] = gang.name;
    json["state"] = state_name(gang.state);
    json["world_size"] = gang.worldSize;
    json["device"] = gang.device;
    json["dtype"] = gang.dtype;
    json["connected_at"] = time_or_null(gang.connectedAt);
    json["last_seen_at"] = time_or_null(gang.lastSeenAt);
    json["job_id"] = gang.__isset.jobId ? Json(gang.jobId) : Json();
    json["custom_id"] = gang.__isset.customId ? Json(gang.customId) : Json();
    json["position"] = gang.position;
    json["tokens_per_second"] = number_or_null(gang.tokensPerSecond);
    json["reason"] = gang.reason;
    json["ranks"] = Json::array();
    for (const idl::RankInfo& rank : gang.ranks) {
        json["ranks"].push_back({{"rank", rank.rank},
                                 {"state", state_name(rank.state)},
                                 {"host", rank.host},
                                 {"pid", rank.pid},
                                 {"device", rank.device},
                                 {"last_seen_at", time_or_null(rank.lastSeenAt)},
                                 {"step", rank.step},
                                 {"reason", rank.reason}});
    }
    return json;
}

Json to_json(const idl::LogEntry& entry) {
    Json json;
    json["sequence"] = entry.sequence;
    json["time"] = entry.time;
    json["level"] = lower_name(idl::_LogLevel_VALUES_TO_NAMES, entry.level);
    json["text"] = entry.text;
    json["custom_id"] = entry.__isset.customId ? Json(entry.customId) : Json();
    json["gang"] = entry.__isset.gang ? Json(entry.gang) : Json();
    json["rank"] = entry.__isset.rank ? Json(entry.rank) : Json();
    return json;
}

Json to_json(const idl::Health& health) {
    return {{"live", health.live},
            {"ready", health.ready},
            {"reason", health.reason},
            {"queued_documents", health.queuedDocuments},
            {"running_documents", health.runningDocuments},
            {"gangs", health.gangs},
            {"free_bytes", health.freeBytes}};
}

Json to_json(const idl::ServerInfo& info) {
    Json json;
    json["protocol_version"] = info.protocolVersion;
    json["version"] = info.version;
    json["commit"] = info.commit;
    json["started_at"] = info.startedAt;
    json["max_frame_bytes"] = info.maxFrameBytes;
    json["max_chunk_bytes"] = info.maxChunkBytes;
    json["max_documents_per_job"] = info.maxDocumentsPerJob;
    json["models"] = Json::array();
    for (const idl::ModelInfo& model : info.models) {
        json["models"].push_back({{"name", model.name},
                                  {"path", model.path},
                                  {"hash", model.hash},
                                  {"family", model.family},
                                  {"parameters", model.parameters},
                                  {"vocab_size", model.vocabSize},
                                  {"trained_tokens", model.trainedTokens}});
    }
    return json;
}

Json to_json(const idl::Plan& plan) {
    return {{"documents", plan.documents},     {"bad_documents", plan.badDocuments},
            {"tokens", plan.tokens},           {"longest_tokens", plan.longestTokens},
            {"blocks", plan.blocks},           {"model_hash", plan.modelHash},
            {"family", plan.family},           {"parameters", plan.parameters},
            {"state_bytes", plan.stateBytes},  {"gangs", plan.gangs},
            {"first_errors", plan.firstErrors}};
}

std::string to_text(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fenwick
