#include "coordinator/api/status_pages.h"

#include <fmt/format.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/api/idl_json.h"
#include "coordinator/api/status_page.h"
#include "coordinator/idl/fenwick_constants.h"
#include "coordinator/store/service_fault.h"

namespace fenwick {
namespace {

constexpr std::int32_t kJobsShown = 50;
constexpr std::int32_t kDocumentsShown = 100;
constexpr std::int32_t kGangsShown = 100;
constexpr std::int64_t kCurvePoints = 400;

HttpReply json_reply(int status, const Json& json) {
    return {status, "application/json", to_text(json)};
}

HttpReply text_reply(int status, const std::string& text) {
    return {status, "text/plain; charset=utf-8", text + "\n"};
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/// %XX and + as forms and encodeURIComponent write them; what is no escape stays as it is.
std::string decoded(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
            out += static_cast<char>(16 * hex_digit(text[i + 1]) + hex_digit(text[i + 2]));
            i += 2;
        } else {
            out += text[i] == '+' ? ' ' : text[i];
        }
    }
    return out;
}

std::map<std::string, std::string> parameters(const std::string& query) {
    std::map<std::string, std::string> found;
    std::size_t begin = 0;
    while (begin < query.size()) {
        const std::size_t end = std::min(query.find('&', begin), query.size());
        const std::string pair = query.substr(begin, end - begin);
        const std::size_t equals = std::min(pair.find('='), pair.size());
        found[decoded(pair.substr(0, equals))] = equals < pair.size() ? decoded(pair.substr(equals + 1)) : "";
        begin = end + 1;
    }
    return found;
}

class Pages {
public:
    Pages(Service& service, const Authentication& authentication, prometheus::Registry& registry,
          const ServiceMetrics& metrics)
        : service_(service), authentication_(authentication), registry_(registry), metrics_(metrics) {}

    HttpReply answer(const HttpRequest& request) const {
        if (request.path == "/livez") return text_reply(200, "live");
        if (request.path == "/readyz") return ready();
        if (request.path == "/metrics") return metrics();
        if (request.path == "/") return {200, "text/html; charset=utf-8", kStatusPage};
        if (request.path == "/api/status" || request.path == "/api/job") return data(request);
        return text_reply(404, "there is no such page; try /");
    }

private:
    HttpReply ready() const {
        const idl::Health health = service_.health();
        return text_reply(health.ready ? 200 : 503, health.ready ? "ready" : "not ready: " + health.reason);
    }

    HttpReply metrics() const {
        auto families = registry_.Collect();
        for (auto& family : metrics_.Collect()) families.push_back(std::move(family));
        return {200, "text/plain; version=0.0.4; charset=utf-8", prometheus::TextSerializer().Serialize(families)};
    }

    HttpReply data(const HttpRequest& request) const {
        const auto caller = caller_of(request);
        if (!caller) return json_reply(401, {{"error", "send a client's token: Authorization: Bearer TOKEN"}});
        try {
            return json_reply(200,
                              request.path == "/api/job" ? job(*caller, parameters(request.query)) : status(*caller));
        } catch (const ServiceFault& fault) {
            const bool absent = fault.service_code() == ServiceCode::NOT_FOUND;
            return json_reply(absent ? 404 : 400, {{"error", fault.what()}, {"code", name_of(fault.service_code())}});
        }
    }

    std::optional<Caller> caller_of(const HttpRequest& request) const {
        const std::string scheme = "Bearer ";
        if (request.authorization.rfind(scheme, 0) == 0) {
            return authentication_.with_token(request.authorization.substr(scheme.size()));
        }
        return authentication_.without_token(request.certificate_name);
    }

    Json status(const Caller& caller) const {
        Json json;
        json["server"] = to_json(service_.server_info(idl::g_fenwick_constants.PROTOCOL_VERSION));
        json["health"] = to_json(service_.health());
        json["client"] = caller.client;
        json["now"] = now_ms();
        json["jobs"] = Json::array();
        for (const idl::Job& job : service_.list_jobs(caller, "", kJobsShown, {}).jobs)
            json["jobs"].push_back(to_json(job));
        json["gangs"] = Json::array();
        for (const idl::GangInfo& gang : service_.list_workers(caller, "", kGangsShown).gangs) {
            json["gangs"].push_back(to_json(gang));
        }
        return json;
    }

    Json job(const Caller& caller, const std::map<std::string, std::string>& asked) const {
        const auto value = [&](const char* name) {
            const auto found = asked.find(name);
            return found == asked.end() ? std::string() : found->second;
        };
        const std::string id = value("id");
        Json json;
        json["job"] = to_json(service_.job(caller, id));
        const idl::DocumentPage page = service_.list_documents(caller, id, value("page"), kDocumentsShown, {});
        const idl::DocumentPage running =
            service_.list_documents(caller, id, "", kDocumentsShown, {idl::DocumentState::RUNNING});
        json["running"] = Json::array();
        for (const idl::DocumentResult& document : running.documents) json["running"].push_back(to_json(document));
        json["documents"] = Json::array();
        for (const idl::DocumentResult& document : page.documents) json["documents"].push_back(to_json(document));
        json["next_page"] = page.__isset.nextPageToken ? Json(page.nextPageToken) : Json();
        std::string shown = value("document");
        if (shown.empty() && !running.documents.empty()) shown = running.documents.front().customId;
        json["curve"] = Json();
        if (!shown.empty()) {
            Json points = Json::array();
            for (const auto& [token, nll] : service_.loss_curve(id, shown, kCurvePoints))
                points.push_back({token, nll});
            json["curve"] = {{"custom_id", shown}, {"points", std::move(points)}};
        }
        return json;
    }

    Service& service_;
    const Authentication& authentication_;
    prometheus::Registry& registry_;
    ServiceMetrics metrics_;
};

}  // namespace

HttpHandler status_pages(Service& service, const Authentication& authentication, prometheus::Registry& registry,
                         const ServiceMetrics& metrics) {
    return [pages = Pages(service, authentication, registry, metrics)](const HttpRequest& request) {
        return pages.answer(request);
    };
}

}  // namespace fenwick
