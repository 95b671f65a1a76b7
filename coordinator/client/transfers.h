// Files to and from a coordinator, in chunks: uploads of documents, downloads of results.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "coordinator/client/service_client.h"

namespace fenwick {

/// Called now and then with what has been moved of how much, in bytes.
using TransferProgress = std::function<void(const std::string& name, std::int64_t moved, std::int64_t size)>;

/// Uploads a file, whole, and returns its id. Throws what ServiceClient throws, DataError for a file that cannot be
/// read or changes meanwhile.
[[nodiscard]] std::string upload_file(ServiceClient& client, const std::filesystem::path& file,
                                      const TransferProgress& progress);

struct ResultsReport {
    std::int64_t files = 0;
    std::int64_t bytes = 0;
    std::int64_t kept = 0;  ///< files that were there already, by size and hash
};

/// Brings the result files of a job that is over into `folder` (made if absent): each appears whole or not at all, as
/// its size and hash in the manifest say; the manifest itself comes last. Files that are there already are not fetched
/// again, so that the call can be repeated. `losses`: the nll/ files, too. Throws what ServiceClient throws, DataError
/// for content that is not what the manifest says, UnavailableError for a folder that cannot be written.
ResultsReport fetch_results(ServiceClient& client, const std::string& job_id, const std::filesystem::path& folder,
                            bool losses, const TransferProgress& progress);

}  // namespace fenwick
