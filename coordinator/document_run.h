// One document through a gang: pass after pass, with save points on the way.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "coordinator/gang_host.h"
#include "coordinator/nll_sum.h"
#include "coordinator/output_folder.h"
#include "coordinator/progress.h"
#include "core/documents.h"

namespace fenwick {

struct PassSettings {
    std::int64_t pass_tokens = 0;  ///< kUnlimitedPass, or a multiple of kBlockTokens
    double save_seconds = 0;       ///< least time between save points; 0 saves after each pass
};

/// The document and what identifies it. `name` is its file name in the output folder.
struct DocumentTask {
    std::int64_t index = 0;
    std::string custom_id;
    std::string name;
    std::string input_hash;
};

struct DocumentTotals {
    NllSum nll;
    double seconds = 0;  ///< over all runs that worked on the document
};

/// Throws DocumentFailure (NUMERIC_ERROR, naming the token) when one of `losses`, the first of which is that of token
/// `position` + 1, is not finite.
void check_finite(const std::string& custom_id, std::int64_t position, std::span<const float> losses);

/// Scores the document, from its save point if there is one that fits, and leaves its losses in the finished file
/// `folder.nll_part(name)`, durable. Throws DocumentFailure for bad content and for a loss that is not finite,
/// InterruptedError, after saving, when a stop was requested, and what the gang and the disk throw.
[[nodiscard]] DocumentTotals score_document(LedGang& gang, const OutputFolder& folder, const DocumentTask& task,
                                            const TokenReader& reader, const PassSettings& settings,
                                            Progress& progress);

/// Removes the document's save point, and its unfinished losses unless `keep_losses`.
void discard_progress(const OutputFolder& folder, const std::string& name, bool keep_losses);

}  // namespace fenwick
