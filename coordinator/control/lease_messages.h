// Leases in the words of the control plane.
#pragma once

#include <string>

#include "coordinator/idl/fenwick_types.h"
#include "coordinator/store/store.h"

namespace fenwick {

[[nodiscard]] LeaseKey key_of(const idl::LeaseKey& key);
[[nodiscard]] idl::LeaseKey key_of(const LeaseKey& key);
/// The lease that a message of rank 0 is about; null when it is about none.
[[nodiscard]] const idl::LeaseKey* find_key(const idl::ControlMessage& message);
[[nodiscard]] idl::ControlMessage revoked_message(const idl::LeaseKey& key, const std::string& reason);
[[nodiscard]] idl::ControlMessage grant_message(const Lease& lease);

}  // namespace fenwick
