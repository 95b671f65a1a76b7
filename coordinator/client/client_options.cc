#include "coordinator/client/client_options.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace fenwick {

const char* const kClientExitCodes =
    "The coordinator: --server, or FENWICK_SERVER. The token: --token-file, or FENWICK_TOKEN.\n"
    "\n"
    "Exit codes: 0 done, 2 wrong command line, or the coordinator refuses the request as it is, 3 some documents "
    "failed "
    "or\nwere cancelled, 65 damaged data, 69 the coordinator cannot be reached or does not let this client in, 70 "
    "internal "
    "error.";

std::shared_ptr<ClientOptions> add_client_options(CLI::App& verb, Command& chosen) {
    auto options = std::make_shared<ClientOptions>();
    const char* const group = "Coordinator";
    verb.add_option("--server", options->server, "HOST:PORT of the coordinator's API")
        ->envname("FENWICK_SERVER")
        ->capture_default_str()
        ->group(group);
    verb.add_option("--token-file", options->token_file, "File with this client's token in its first line")
        ->group(group);
    verb.add_option("--tls-ca", options->tls_authority, "Use TLS; certificates (PEM) of the authority to trust")
        ->group(group);
    verb.add_option("--tls-certificate", options->tls_certificate, "This client's certificate (PEM), for mutual TLS")
        ->group(group);
    verb.add_option("--tls-key", options->tls_key, "Its private key (PEM)")->group(group);
    verb.add_option("--retry-seconds", options->retry_seconds,
                    "How long to try again while the coordinator is away or asks to wait")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str()
        ->group(group);
    verb.add_flag("--json", chosen.json, "Print JSON on stdout");
    verb.footer(kClientExitCodes);
    return options;
}

void add_question(CLI::App& verb, Command& chosen, std::function<int(ServiceClient&)> ask) {
    const std::shared_ptr<ClientOptions> options = add_client_options(verb, chosen);
    verb.callback([options, ask = std::move(ask), &chosen] {
        chosen.run = [options, ask] {
            ServiceClient client(*options);
            return ask(client);
        };
    });
}

}  // namespace fenwick
