#pragma once
namespace nvtx3 {
struct scoped_range {
    explicit scoped_range(const char*) {}
};
}  // namespace nvtx3
