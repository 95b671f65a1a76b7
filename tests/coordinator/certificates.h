// Certificates for tests, made by the openssl program.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace fenwick::testing {

/// Two authorities; of the first a server's and a client's certificate, of the second another client's.
class Certificates {
public:
    /// `folder`: exists, and takes the files.
    explicit Certificates(std::filesystem::path folder) : folder_(std::move(folder)) {
        for (const char* authority : {"ca", "other"}) {
            run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" +
                std::string(authority) + " -keyout " + file(authority, "key") + " -out " + file(authority, "pem"));
        }
        issue("server", "ca");
        issue("alice", "ca");
        issue("mallory", "other");
    }
    [[nodiscard]] std::string certificate(const std::string& name) const { return file(name, "pem"); }
    [[nodiscard]] std::string key(const std::string& name) const { return file(name, "key"); }

private:
    void issue(const std::string& name, const std::string& authority) const {
        std::ofstream(folder_ / "extensions") << "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
        run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " +
            key(name) + " -out " + file(name, "csr"));
        run("openssl x509 -req -days 2 -CAcreateserial -in " + file(name, "csr") + " -CA " + file(authority, "pem") +
            " -CAkey " + file(authority, "key") + " -extfile " + (folder_ / "extensions").string() + " -out " +
            certificate(name));
    }
    static void run(const std::string& command) {
        INFO(command);
        REQUIRE(std::system((command + " >/dev/null 2>&1").c_str()) == 0);
    }
    [[nodiscard]] std::string file(const std::string& name, const std::string& ending) const {
        return (folder_ / (name + "." + ending)).string();
    }
    std::filesystem::path folder_;
};

}  // namespace fenwick::testing
