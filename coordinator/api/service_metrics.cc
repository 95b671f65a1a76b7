#include "coordinator/api/service_metrics.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "coordinator/api/idl_json.h"
#include "coordinator/build_info.h"

namespace fenwick {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric series(MetricType type, double value, std::vector<ClientMetric::Label> labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (type == MetricType::Counter) {
        metric.counter.value = value;
    } else {
        metric.gauge.value = value;
    }
    return metric;
}

MetricFamily family(const char* name, const char* help, MetricType type, std::vector<ClientMetric> metrics) {
    MetricFamily made;
    made.name = name;
    made.help = help;
    made.type = type;
    made.metric = std::move(metrics);
    return made;
}

MetricFamily single(const char* name, const char* help, MetricType type, double value) {
    return family(name, help, type, {series(type, value)});
}

MetricFamily by_state(const char* name, const char* help, const std::map<std::string, double>& counts) {
    std::vector<ClientMetric> metrics;
    for (const auto& [state, count] : counts) metrics.push_back(series(MetricType::Gauge, count, {{"state", state}}));
    return family(name, help, MetricType::Gauge, std::move(metrics));
}

void add_gangs(Service& service, std::vector<MetricFamily>& families) {
    std::map<std::string, double> gangs;
    std::map<std::string, double> ranks;
    for (const auto& [value, name] : idl::_GangState_VALUES_TO_NAMES)
        gangs[state_name(idl::GangState::type(value))] = 0;
    for (const auto& [value, name] : idl::_RankState_VALUES_TO_NAMES)
        ranks[state_name(idl::RankState::type(value))] = 0;
    double rate = 0;
    std::string token;
    do {
        const idl::GangPage page = service.store().list_gangs(token, 1000);
        for (const idl::GangInfo& gang : page.gangs) {
            gangs[state_name(gang.state)] += 1;
            for (const idl::RankInfo& rank : gang.ranks) ranks[state_name(rank.state)] += 1;
            rate += gang.state == idl::GangState::BUSY ? gang.tokensPerSecond : 0;
        }
        token = page.__isset.nextPageToken ? page.nextPageToken : "";
    } while (!token.empty());
    families.push_back(by_state("fenwick_gangs", "Gangs by state; of those that ended, the latest.", gangs));
    families.push_back(by_state("fenwick_ranks", "Ranks of these gangs by state.", ranks));
    families.push_back(
        single("fenwick_tokens_per_second", "What all busy gangs compute now.", MetricType::Gauge, rate));
}

void add_jobs(Service& service, std::vector<MetricFamily>& families) {
    std::map<std::string, double> jobs;
    for (const auto state : {idl::JobState::VALIDATING, idl::JobState::IN_PROGRESS, idl::JobState::FINALIZING,
                             idl::JobState::CANCELLING}) {
        jobs[state_name(state)] = static_cast<double>(service.store().jobs_in(state).size());
    }
    families.push_back(by_state("fenwick_jobs", "Jobs that are not over, by state.", jobs));
    std::map<std::string, double> documents;
    for (const auto state : {idl::DocumentState::QUEUED, idl::DocumentState::RUNNING}) {
        documents[state_name(state)] = static_cast<double>(service.store().count_documents(state));
    }
    families.push_back(by_state("fenwick_documents", "Documents that are not done, by state.", documents));
}

void add_process(std::vector<MetricFamily>& families) {
    std::ifstream statm("/proc/self/statm");
    double pages = 0;
    double resident = 0;
    statm >> pages >> resident;
    families.push_back(single("process_resident_memory_bytes", "Resident memory size in bytes.", MetricType::Gauge,
                              resident * static_cast<double>(::sysconf(_SC_PAGESIZE))));
    std::error_code error;  // without /proc there are none to count
    const std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
    const auto open = error ? 0 : std::distance(begin(descriptors), end(descriptors));
    families.push_back(
        single("process_open_fds", "Number of open file descriptors.", MetricType::Gauge, static_cast<double>(open)));
}

}  // namespace

std::vector<MetricFamily> ServiceMetrics::Collect() const {
    std::vector<MetricFamily> families;
    const idl::Health health = service_.health();
    families.push_back(
        family("fenwick_build_info", "1, with the version as labels.", MetricType::Gauge,
               {series(MetricType::Gauge, 1, {{"version", build_info::kVersion}, {"commit", build_info::kCommit}})}));
    families.push_back(single("fenwick_ready", "1 while new jobs are taken.", MetricType::Gauge, health.ready ? 1 : 0));
    families.push_back(single("fenwick_free_bytes", "Free space where the coordinator keeps its data.",
                              MetricType::Gauge, static_cast<double>(health.freeBytes)));
    add_jobs(service_, families);
    add_gangs(service_, families);
    add_process(families);
    return families;
}

}  // namespace fenwick
