// Jobs, documents, gangs and logs as lines of text for people.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/idl/fenwick_types.h"
#include "core/errors.h"

namespace fenwick {

/// "in_progress, 12 of 40 documents (1 failed), 48.3 % of 9123456 tokens, 5123 tokens/s, 12:40 min left"
[[nodiscard]] std::string progress_line(const idl::Job& job);
/// Several lines: everything about the job.
[[nodiscard]] std::string job_text(const idl::Job& job);
/// One line, in the columns of document_heading().
[[nodiscard]] std::string document_line(const idl::DocumentResult& document);
[[nodiscard]] std::string document_heading();
[[nodiscard]] std::string job_line(const idl::Job& job);  ///< in the columns of job_heading()
[[nodiscard]] std::string job_heading();
[[nodiscard]] std::string gang_text(const idl::GangInfo& gang, std::int64_t now);  ///< a line, and one for each rank
[[nodiscard]] std::string log_line(const idl::LogEntry& entry);
/// "2026-11-30 14:03:59", local time.
[[nodiscard]] std::string time_text(std::int64_t ms);

/// What a verb that waited for the job returns: kDone; kSomeDocumentsFailed when some failed, or it was cancelled or
/// expired before all were done; the error's code when the job failed as a whole.
[[nodiscard]] ExitCode exit_code_of(const idl::Job& job);

}  // namespace fenwick
