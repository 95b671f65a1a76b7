#include "coordinator/api/authentication.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "core/errors.h"

namespace fenwick {

Authentication::Authentication(const std::vector<ClientToken>& tokens, bool certificates)
    : certificates_(certificates) {
    for (const ClientToken& token : tokens) {
        entries_.push_back({digest_of(token.token), Caller{token.client, token.admin}});
    }
}

std::optional<Caller> Authentication::without_token(const std::string& certificate_name) const {
    if (!entries_.empty()) return std::nullopt;
    if (!certificates_) return Caller{};
    // A certificate says who, not that this is an administrator: that takes a token.
    if (certificate_name.empty()) return std::nullopt;
    return Caller{certificate_name, false};
}

std::optional<Caller> Authentication::with_token(const std::string& token) const {
    const Digest digest = digest_of(token);
    const Entry* found = nullptr;
    for (const Entry& entry : entries_) {  // all of them: the time does not tell which one was near
        if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
    }
    return found == nullptr ? std::nullopt : std::optional(found->caller);
}

Authentication::Digest Authentication::digest_of(const std::string& token) {
    Digest digest = {};
    unsigned int size = 0;
    if (EVP_Digest(token.data(), token.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
        throw InternalError("OpenSSL: SHA-256 is not available");
    }
    return digest;
}

}  // namespace fenwick
