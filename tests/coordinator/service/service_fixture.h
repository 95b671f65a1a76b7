// A Service of its own for a test: a small random model, a root, and a job that is ready to be leased.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/service/leased_document.h"
#include "coordinator/service/model_catalog.h"
#include "coordinator/service/service.h"
#include "tests/coordinator/support.h"
#include "worker/init.h"

namespace fenwick::testing {

struct ServiceFixture {
    TemporaryFolder folder;
    std::unique_ptr<Service> service;

    explicit ServiceFixture(const std::function<void(ServeConfig&)>& change = [](ServeConfig&) {}) {
        RandomModelOptions model;
        model.output = folder / "model";
        model.hidden_size = 16;
        model.layers = 1;
        model.heads = 2;
        model.head_dim = 8;
        model.state_size = 8;
        write_random_model(model);
        ServeConfig config;
        config.data = folder / "data";
        config.roots = {folder / "root"};
        config.models = {{"small", folder / "model"}};
        std::filesystem::create_directories(folder / "root");
        change(config);
        service = std::make_unique<Service>(config);
        service->start();
    }

    [[nodiscard]] static idl::JobSpec spec_of(const std::vector<std::pair<std::string, std::string>>& texts) {
        idl::JobSpec spec;
        spec.model.__set_name("small");
        for (const auto& [id, text] : texts) {
            idl::DocumentRef document;
            document.__set_customId(id);
            document.source.__set_text(text);
            spec.documents.push_back(document);
        }
        return spec;
    }

    /// Waits until the job has left VALIDATING.
    idl::Job submit(const idl::JobSpec& spec) {
        const std::string id = service->submit({}, spec, "").id;
        wait_for([&] { return service->job({}, id).state != idl::JobState::VALIDATING; });
        return service->job({}, id);
    }

    idl::Job wait_over(const std::string& id) {
        wait_for([&] { return service->job({}, id).finishedAt > 0; });
        return service->job({}, id);
    }

    [[nodiscard]] static LeaseRequest cpu_gang() {
        LeaseRequest request;
        request.gang_id = "gang-1";
        request.device = "cpu";
        request.dtype = "fp32";
        return request;
    }
    [[nodiscard]] LeasedDocument lease(std::int64_t stretch = 0) {
        LeaseRequest request = cpu_gang();
        request.stretch_tokens = stretch;
        const auto lease = service->store().lease_next(request);
        REQUIRE(lease);
        return {service->store(), service->folders(), service->models(), *lease, {"gang-1", "one", 2, "cpu", "fp32"}};
    }
};

/// `count` losses of that value, as they travel.
[[nodiscard]] inline std::string loss_bytes(std::int64_t count, float value) {
    const std::vector<float> losses(static_cast<std::size_t>(count), value);
    return {reinterpret_cast<const char*>(losses.data()), losses.size() * sizeof(float)};
}

[[nodiscard]] inline ServiceCode fault_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const ServiceFault& fault) {
        return fault.service_code();
    }
    FAIL("no ServiceFault");
    return ServiceCode::INTERNAL;
}

}  // namespace fenwick::testing
