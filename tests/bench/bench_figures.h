// Figures for programs to read, beside the tables that people read (ops/scaling-curve).
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/errors.h"

namespace fenwick::bench {

/// Appends `figure` to `file` as one line; does nothing where no file is named.
inline void append_figure(const std::filesystem::path& file, const nlohmann::ordered_json& figure) {
    if (file.empty()) return;
    std::ofstream out(file, std::ios::app);
    out << figure.dump() << '\n';
    out.flush();
    if (!out) throw UnavailableError("--json " + file.string() + ": cannot be written");
}

}  // namespace fenwick::bench
