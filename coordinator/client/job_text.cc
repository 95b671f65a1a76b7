#include "coordinator/client/job_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "coordinator/api/idl_json.h"
#include "coordinator/progress.h"
#include "coordinator/store/service_fault.h"

namespace fenwick {
namespace {

double percent(std::int64_t part, std::int64_t whole) {
    return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string seconds_ago(std::int64_t time, std::int64_t now) {
    return time > 0 ? duration_text(static_cast<double>(std::max<std::int64_t>(now - time, 0)) / 1000) + " ago"
                    : "never";
}

std::string rate_and_eta(double rate, double eta) {
    if (rate <= 0) return {};
    std::string text = fmt::format(", {:.0f} tokens/s", rate);
    if (eta >= 0) text += fmt::format(", {} left", duration_text(eta));
    return text;
}

}  // namespace

std::string time_text(std::int64_t ms) {
    if (ms <= 0) return "-";
    return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(ms / 1000)));
}

std::string progress_line(const idl::Job& job) {
    const idl::RequestCounts& counts = job.requestCounts;
    std::string line = fmt::format("{}, {} of {} documents", state_name(job.state), counts.completed, counts.total);
    if (counts.failed > 0) line += fmt::format(" ({} failed)", counts.failed);
    if (counts.cancelled > 0) line += fmt::format(" ({} cancelled)", counts.cancelled);
    if (job.tokens > 0) line += fmt::format(", {:.1f} % of {} tokens", percent(job.tokensDone, job.tokens), job.tokens);
    if (!is_over(job.state)) line += rate_and_eta(job.tokensPerSecond, job.etaSeconds);
    return line;
}

std::string job_text(const idl::Job& job) {
    std::string text =
        fmt::format("{}{}\n  {}\n", job.id, job.name.empty() ? "" : " (" + job.name + ")", progress_line(job));
    if (job.__isset.errorMessage) text += fmt::format("  {}: {}\n", name_of(job.errorCode), job.errorMessage);
    text +=
        fmt::format("  model      {} ({})\n", job.model.name.empty() ? job.model.path : job.model.name, job.model.hash);
    text +=
        fmt::format("  computing  {} {}, tokenizer {}{}, levels {}\n", job.device.empty() ? "any device" : job.device,
                    job.dtype, job.tokenizer, job.bos ? " with BOS" : "", job.levels);
    text += fmt::format("  client     {}, priority {}\n", job.client, job.priority);
    text += fmt::format("  submitted  {}, started {}, finished {}\n", time_text(job.createdAt),
                        time_text(job.startedAt), time_text(job.finishedAt));
    text += fmt::format("  used       {} tokens computed, {:.1f} rank seconds, {:.1f} GPU seconds\n",
                        job.usage.computedTokens, job.usage.rankSeconds, job.usage.gpuSeconds);
    return text;
}

std::string document_heading() {
    return fmt::format("{:>7}  {:<10} {:>14} {:>7} {:>10} {:>12}  {}", "#", "state", "tokens", "done", "tokens/s",
                       "left", "document");
}

std::string document_line(const idl::DocumentResult& document) {
    const bool running = document.state == idl::DocumentState::RUNNING;
    const bool done = document.state == idl::DocumentState::COMPLETED;
    std::string line =
        fmt::format("{:>7}  {:<10} {:>14} {:>6.1f}% {:>10} {:>12}  {}", document.index + 1, state_name(document.state),
                    document.tokens >= 0 ? std::to_string(document.tokens) : "-",
                    done ? 100.0 : percent(document.position, document.tokens),
                    running && document.tokensPerSecond > 0 ? fmt::format("{:.0f}", document.tokensPerSecond) : "-",
                    running && document.etaSeconds >= 0 ? duration_text(document.etaSeconds) : "-", document.customId);
    if (document.__isset.errorMessage)
        line += fmt::format("  {}: {}", name_of(document.errorCode), document.errorMessage);
    return line;
}

std::string job_heading() {
    return fmt::format("{:<26} {:<12} {:>9} {:>9} {:>7} {:>7}  {:<19}  {}", "job", "state", "documents", "completed",
                       "failed", "done", "submitted", "name");
}

std::string job_line(const idl::Job& job) {
    const idl::RequestCounts& counts = job.requestCounts;
    return fmt::format("{:<26} {:<12} {:>9} {:>9} {:>7} {:>6.1f}%  {:<19}  {}", job.id, state_name(job.state),
                       counts.total, counts.completed, counts.failed, percent(job.tokensDone, job.tokens),
                       time_text(job.createdAt), job.name);
}

std::string gang_text(const idl::GangInfo& gang, std::int64_t now) {
    std::string text =
        fmt::format("{}{}  {}, {} ranks, {} {}", gang.id, gang.name.empty() ? "" : " (" + gang.name + ")",
                    state_name(gang.state), gang.worldSize, gang.device, gang.dtype);
    if (gang.__isset.customId) {
        text +=
            fmt::format(", at token {} of {}{}", gang.position, gang.customId, rate_and_eta(gang.tokensPerSecond, -1));
    }
    if (!gang.reason.empty()) text += ": " + gang.reason;
    text += "\n";
    for (const idl::RankInfo& rank : gang.ranks) {
        text += fmt::format("  rank {:>3}  {:<12} {} pid {}{}  seen {}  {}\n", rank.rank, state_name(rank.state),
                            rank.host, rank.pid, rank.device.empty() ? "" : " " + rank.device,
                            seconds_ago(rank.lastSeenAt, now), rank.reason.empty() ? rank.step : rank.reason);
    }
    return text;
}

std::string log_line(const idl::LogEntry& entry) {
    std::string line = fmt::format("{} {:<7} ", time_text(entry.time),
                                   entry.level == idl::LogLevel::INFO      ? "info"
                                   : entry.level == idl::LogLevel::WARNING ? "warning"
                                                                           : "error");
    if (entry.__isset.customId) line += entry.customId + ": ";
    if (entry.__isset.gang) line += "gang " + entry.gang + (entry.__isset.rank ? "" : ": ");
    if (entry.__isset.rank) line += fmt::format("{}rank {}: ", entry.__isset.gang ? " " : "", entry.rank);
    return line + entry.text;
}

ExitCode exit_code_of(const idl::Job& job) {
    if (job.state == idl::JobState::FAILED && job.__isset.errorCode) return ServiceFault::exit_code_of(job.errorCode);
    const bool all = job.state == idl::JobState::COMPLETED && job.requestCounts.failed == 0;
    return all ? ExitCode::kDone : ExitCode::kSomeDocumentsFailed;
}

}  // namespace fenwick
