#include "coordinator/front/tls.h"

#include <fmt/format.h>

#include <boost/system/error_code.hpp>

#include "core/errors.h"

namespace fenwick {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

void check(const error_code& error, const std::filesystem::path& file, const std::string& expected) {
    if (error) throw ConfigError(fmt::format("{}: expected {}, found: {}", file.string(), expected, error.message()));
}

}  // namespace

ssl::context server_tls(const ServerTlsFiles& files) {
    ssl::context context(ssl::context::tls_server);
    error_code error;
    context.set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 |
                            ssl::context::single_dh_use,
                        error);
    check(error, files.certificate, "an OpenSSL that offers TLS 1.2");
    context.use_certificate_chain_file(files.certificate.string(), error);
    check(error, files.certificate, "a certificate chain in PEM form");
    context.use_private_key_file(files.key.string(), ssl::context::pem, error);
    check(error, files.key, "the private key, in PEM form, of " + files.certificate.string());
    if (!files.client_authority.empty()) {
        context.load_verify_file(files.client_authority.string(), error);
        check(error, files.client_authority, "certificates of authorities in PEM form");
        context.set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
        check(error, files.client_authority, "an OpenSSL that asks for certificates");
    }
    return context;
}

ssl::context client_tls(const ClientTlsFiles& files) {
    ssl::context context(ssl::context::tls_client);
    error_code error;
    context.set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, error);
    check(error, files.authority, "an OpenSSL that offers TLS 1.2");
    context.load_verify_file(files.authority.string(), error);
    check(error, files.authority, "certificates of authorities in PEM form");
    context.set_verify_mode(ssl::verify_peer, error);
    check(error, files.authority, "an OpenSSL that checks certificates");
    if (!files.certificate.empty()) {
        context.use_certificate_chain_file(files.certificate.string(), error);
        check(error, files.certificate, "a certificate chain in PEM form");
        context.use_private_key_file(files.key.string(), ssl::context::pem, error);
        check(error, files.key, "the private key, in PEM form, of " + files.certificate.string());
    }
    return context;
}

}  // namespace fenwick
