// A coordinator behind mutual TLS, and its clients: the verbs, the Python client, a browser's port.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "../certificates.h"
#include "support.h"

namespace fenwick::testing {
namespace {

TEST_CASE("tls: clients are known by their certificates, and wrong ones get an error code") {
    const TemporaryFolder folder;
    const Certificates certificates(folder.path());
    LocalCoordinator coordinator([&](ServeConfig& config) {
        config.tls = {certificates.certificate("server"), certificates.key("server"), certificates.certificate("ca")};
    });
    const std::string server = "127.0.0.1:" + std::to_string(coordinator.api_port());
    const auto run = [&](Arguments arguments, const std::string& authority, const std::string& client) {
        arguments.insert(arguments.end(), {"--server", server, "--retry-seconds", "0", "--json"});
        if (!authority.empty()) arguments.insert(arguments.end(), {"--tls-ca", certificates.certificate(authority)});
        if (!client.empty()) {
            arguments.insert(arguments.end(), {"--tls-certificate", certificates.certificate(client), "--tls-key",
                                               certificates.key(client)});
        }
        return run_program(arguments);
    };
    const auto book = coordinator.folder() / "book.txt";
    write_file(book, text_of(3'000'000, 5));
    const Finished submitted = run({"submit", "--model", "small", book.string()}, "ca", "alice");
    INFO(submitted.err);
    REQUIRE(submitted.code == 0);
    CHECK(nlohmann::json::parse(submitted.out)["client"] == "alice");
    // Without a certificate, with one of another authority, with one that trusts another server, without TLS at all.
    CHECK(run({"list"}, "ca", "").code == 69);
    CHECK(run({"list"}, "ca", "mallory").code == 69);
    CHECK(run({"list"}, "other", "alice").code == 69);
    CHECK(run({"list"}, "", "").code == 69);
    CHECK(nlohmann::json::parse(run({"list"}, "ca", "alice").out).size() == 1);  // nothing came of these

    REQUIRE(::setenv("PYTHONPATH", FENWICK_PYTHON_PACKAGE, 1) == 0);
    const auto python = [&](const std::string& authority, const std::string& client) {
        const std::string program =
            "import sys; from fenwick_client import Client\n"
            "with Client('127.0.0.1', int(sys.argv[1]), tls_ca=sys.argv[2], tls_cert=sys.argv[3], tls_key=sys.argv[4], "
            "retry_seconds=0) as c: print(len(c.listJobs('', 10, []).jobs))";
        Child child({"-c", program, std::to_string(coordinator.api_port()), certificates.certificate(authority),
                     certificates.certificate(client), certificates.key(client)},
                    std::nullopt, FENWICK_PYTHON);
        return child.wait();
    };
    const Finished listed = python("ca", "alice");
    INFO(listed.err);
    CHECK(listed.code == 0);
    CHECK(listed.out == "1\n");
    CHECK(python("other", "alice").code == 1);
    CHECK(python("ca", "mallory").code == 1);
}

}  // namespace
}  // namespace fenwick::testing
