// What the HTTP port serves: /livez, /readyz, /metrics, the status page at / and the JSON that it reads.
#pragma once

#include <prometheus/registry.h>

#include "coordinator/api/authentication.h"
#include "coordinator/api/service_metrics.h"
#include "coordinator/front/http_server.h"
#include "coordinator/service/service.h"

namespace fenwick {

/// All references must outlive the handler. Where clients have tokens, the JSON takes one ("Authorization: Bearer ...")
/// and shows what that client may see; the other pages name no job and no document and are open.
[[nodiscard]] HttpHandler status_pages(Service& service, const Authentication& authentication,
                                       prometheus::Registry& registry, const ServiceMetrics& metrics);

}  // namespace fenwick
