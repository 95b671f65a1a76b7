// The options that all client verbs share.
#pragma once

#include <functional>
#include <memory>

#include "coordinator/client/service_client.h"
#include "coordinator/commands/commands.h"

namespace fenwick {

/// Adds --server, --token-file, --tls-ca, --tls-certificate, --tls-key, --retry-seconds and --json to `verb`.
[[nodiscard]] std::shared_ptr<ClientOptions> add_client_options(CLI::App& verb, Command& chosen);

/// Adds them, and makes the verb ask: `ask` is called with a client of these options, and returns the exit code.
void add_question(CLI::App& verb, Command& chosen, std::function<int(ServiceClient&)> ask);

/// The exit codes of verbs that ask a coordinator, for their --help.
extern const char* const kClientExitCodes;

}  // namespace fenwick
