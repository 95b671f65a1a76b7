// One value of every struct of the public service, with every field of version 1 set, and one exchange for every call.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/idl/Fenwick.h"

namespace fenwick::testing {

/// A call of version 1: what a client sends, and what it makes of the answer.
struct Exchange {
    std::string method;
    std::function<void(idl::FenwickClient&)> send;
    /// Reads the reply and returns whether it is the sample value (for "refused": the sample ServiceError).
    std::function<bool(idl::FenwickClient&)> receive;
};

[[nodiscard]] std::vector<Exchange> exchanges();

/// Answers every call with its sample value; counts calls whose arguments are not those of the exchange.
[[nodiscard]] std::shared_ptr<idl::FenwickIf> sample_handler(int& wrong_arguments);

}  // namespace fenwick::testing
