// A coordinator without gangs in the test's own process, and clients of its API.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "../support.h"
#include "coordinator/api/ports.h"
#include "coordinator/idl/Fenwick.h"
#include "coordinator/service/service.h"

namespace fenwick::testing {

/// Ports are any free ones; "small" is a random model; roots holds documents that jobs may name by path.
class LocalCoordinator {
public:
    /// `change` may alter the configuration before the start.
    explicit LocalCoordinator(const std::function<void(ServeConfig&)>& change = {});
    [[nodiscard]] Service& service() { return *service_; }
    [[nodiscard]] std::uint16_t api_port() const { return ports_->api_port(); }
    [[nodiscard]] std::uint16_t http_port() const { return ports_->http_port(); }
    [[nodiscard]] std::filesystem::path roots() const { return folder_ / "roots"; }
    [[nodiscard]] const TemporaryFolder& folder() const { return folder_; }
    /// Ends it and starts it again on the same data.
    void restart();

private:
    void start();
    TemporaryFolder folder_;
    ServeConfig config_;
    std::unique_ptr<Service> service_;
    std::unique_ptr<ClientPorts> ports_;
};

/// The generated client on a connection of its own.
class ApiClient {
public:
    explicit ApiClient(std::uint16_t port, const std::string& token = "");
    idl::FenwickClient* operator->() { return client_.get(); }

private:
    std::unique_ptr<idl::FenwickClient> client_;
};

/// Of one document with the given text, on the model "small".
[[nodiscard]] idl::JobSpec text_job(const std::string& text);
/// The ServiceError that `call` throws; fails the test when it throws none.
[[nodiscard]] idl::ServiceError refusal_of(const std::function<void()>& call);

/// One that nobody listens at just now.
[[nodiscard]] std::uint16_t free_port();

struct HttpAnswer {
    int status = 0;
    std::string body;
};
[[nodiscard]] HttpAnswer http_get(std::uint16_t port, const std::string& target, const std::string& token = "");

}  // namespace fenwick::testing
