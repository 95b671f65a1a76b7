// The version of what a run writes: job.json, the journal, save points, rows and manifest.json.
#pragma once

namespace fenwick {

inline constexpr int kOutputFormatVersion = 1;

}  // namespace fenwick
