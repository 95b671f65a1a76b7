#include "worker/families/families.h"

#include <algorithm>

#include "core/errors.h"

namespace fenwick {

const std::vector<Family>& all_families() {
    static const std::vector<Family> families = {log_linear_mamba2_family(), mamba2_family(), h_gated_deltanet_family(),
                                                 gated_deltanet_family()};
    return families;
}

const Family& find_family(const std::string& name, const std::string& source) {
    std::string known;
    for (const Family& family : all_families()) {
        if (family.name == name) return family;
        known += (known.empty() ? "" : ", ") + family.name;
    }
    throw ConfigError(source + ": unknown model family " + in_quotes(name) + "; known families: " + known);
}

void require_positive(const ConfigReader& config, const std::string& field, std::int64_t value) {
    if (value < 1 || value > (std::int64_t{1} << 30)) config.fail(field, "a number from 1 to 2^30");
}

void require_silu(const ConfigReader& config) {
    const std::string act = config.get_string("hidden_act", "silu");
    if (act != "silu" && act != "swish") config.fail("hidden_act", "\"silu\" (or \"swish\")");
}

void require_absent(const ConfigReader& config, const std::string& field, const std::string& what) {
    if (config.is_null(field)) return;
    const nlohmann::json& value = config.json().at(field);
    if (value.is_structured() && value.empty()) return;
    config.fail(field, "null: this version runs no " + what);
}

std::int64_t read_conv_width(const ConfigReader& config, const std::string& field) {
    const std::int64_t width = config.get_int(field, 4);
    if (width < 1 || width > kMaxConvolutionWidth) {
        config.fail(field, "a width from 1 to " + std::to_string(kMaxConvolutionWidth));
    }
    return width;
}

}  // namespace fenwick
