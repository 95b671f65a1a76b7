// The coordinator's own figures for Prometheus, read from service and process when they are asked for.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "coordinator/service/service.h"

namespace fenwick {

/// Prometheus' rules: base units, _total for what only grows, few labels, no names of jobs, documents or clients.
class ServiceMetrics final : public prometheus::Collectable {
public:
    explicit ServiceMetrics(Service& service) : service_(service) {}
    [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override;

private:
    Service& service_;
};

}  // namespace fenwick
