#include "coordinator/control/lease_messages.h"

#include "coordinator/control/rank_link.h"

namespace fenwick {

LeaseKey key_of(const idl::LeaseKey& key) {
    return {key.document, key.epoch};
}

idl::LeaseKey key_of(const LeaseKey& key) {
    idl::LeaseKey idl_key;
    idl_key.document = key.document;
    idl_key.epoch = key.epoch;
    return idl_key;
}

const idl::LeaseKey* find_key(const idl::ControlMessage& message) {
    if (message.__isset.stateRequest) return &message.stateRequest.lease;
    if (message.__isset.stateChunk) return &message.stateChunk.lease;
    if (message.__isset.tokensRequest) return &message.tokensRequest.lease;
    if (message.__isset.losses) return &message.losses.lease;
    if (message.__isset.savePoint) return &message.savePoint.lease;
    if (message.__isset.giveBack) return &message.giveBack.lease;
    return nullptr;
}

idl::ControlMessage revoked_message(const idl::LeaseKey& key, const std::string& reason) {
    idl::Revoked revoked;
    revoked.lease = key;
    revoked.reason = reason;
    return as_message(revoked);
}

idl::ControlMessage grant_message(const Lease& lease) {
    idl::Grant grant;
    grant.lease = key_of(lease.key);
    grant.jobId = lease.document.job_id;
    grant.customId = lease.document.ref.custom_id;
    grant.tokens = lease.document.tokens;
    grant.first = lease.first;
    grant.limit = lease.limit;
    grant.modelPath = lease.model_path;
    grant.modelHash = lease.model_hash;
    grant.stateBytes = lease.document.save.state_bytes;
    grant.stateHash = lease.document.save.state_hash;
    grant.stateFile = lease.document.save.state_file;
    return as_message(grant);
}

}  // namespace fenwick
