// Who calls: a token, else the certificate of mutual TLS, else, where neither is configured, everybody as "local".
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/service/config.h"
#include "coordinator/service/service.h"

namespace fenwick {

class Authentication {
public:
    /// `certificates`: clients show certificates (mutual TLS), and without tokens these say who they are.
    Authentication(const std::vector<ClientToken>& tokens, bool certificates);

    /// The caller of a connection that has sent no token; nothing when it has to.
    [[nodiscard]] std::optional<Caller> without_token(const std::string& certificate_name) const;
    /// Nothing for an unknown token. Takes the same time for every token.
    [[nodiscard]] std::optional<Caller> with_token(const std::string& token) const;

private:
    using Digest = std::array<unsigned char, 32>;  // SHA-256
    struct Entry {
        Digest digest;
        Caller caller;
    };
    [[nodiscard]] static Digest digest_of(const std::string& token);

    std::vector<Entry> entries_;
    bool certificates_;
};

}  // namespace fenwick
