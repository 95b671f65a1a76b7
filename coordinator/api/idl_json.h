// The IDL's structs as JSON: what the status page reads and what the client verbs print with --json. Names are the
// IDL's in snake_case, states are lower-case words, numbers that are not known are null, times are milliseconds since
// 1970.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/idl/fenwick_types.h"

namespace fenwick {

using Json = nlohmann::ordered_json;

[[nodiscard]] Json to_json(const idl::Job& job);
[[nodiscard]] Json to_json(const idl::DocumentResult& document);
[[nodiscard]] Json to_json(const idl::GangInfo& gang);
[[nodiscard]] Json to_json(const idl::LogEntry& entry);
[[nodiscard]] Json to_json(const idl::Usage& usage);
[[nodiscard]] Json to_json(const idl::Health& health);
[[nodiscard]] Json to_json(const idl::ServerInfo& info);
[[nodiscard]] Json to_json(const idl::Plan& plan);

/// "in_progress", ...
[[nodiscard]] std::string state_name(idl::JobState::type state);
[[nodiscard]] std::string state_name(idl::DocumentState::type state);
[[nodiscard]] std::string state_name(idl::GangState::type state);
[[nodiscard]] std::string state_name(idl::RankState::type state);
/// COMPLETED, FAILED, EXPIRED, CANCELLED: only a retry moves the job again.
[[nodiscard]] bool is_over(idl::JobState::type state);

/// One line; bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string to_text(const Json& json);

}  // namespace fenwick
