// Gradients of nodes: the reverse of what node_summaries.h does. A gradient lies as the summary does whose it is
// (kernels/backward/summary.h).
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "core/tensor.h"
#include "parallel/node_summaries.h"

namespace fenwick {

/// Of a CombineFunction with the same children: adds to d_left and d_right.
using CombineBackwardFunction =
    std::function<void(const float* left, const float* right, const float* d_out, float* d_left, float* d_right)>;

/// What can be done with gradients where they lie: on the host, or on a device in its stream's order. Beside a
/// SummaryMemory of the same place, which allocates and copies.
class SummaryGradients {
public:
    virtual ~SummaryGradients() = default;
    virtual void zero(std::int64_t floats, float* to) = 0;
    /// to += from
    virtual void add(const float* from, std::int64_t floats, float* to) = 0;
    virtual void combine_backward(const float* left, const float* right, const float* d_out, float* d_left,
                                  float* d_right) = 0;
    /// Of SummaryMemory::combine_siblings: adds to d_children [2 pairs, floats] what d_out [pairs, floats] gives.
    virtual void combine_siblings_backward(const float* children, const float* d_out, std::int64_t pairs,
                                           std::int64_t floats, float* d_children) = 0;
};

/// Host memory and a function.
class HostSummaryGradients final : public SummaryGradients {
public:
    explicit HostSummaryGradients(CombineBackwardFunction combine_backward)
        : combine_backward_(std::move(combine_backward)) {}
    void zero(std::int64_t floats, float* to) override;
    void add(const float* from, std::int64_t floats, float* to) override;
    void combine_backward(const float* left, const float* right, const float* d_out, float* d_left,
                          float* d_right) override {
        combine_backward_(left, right, d_out, d_left, d_right);
    }
    void combine_siblings_backward(const float* children, const float* d_out, std::int64_t pairs, std::int64_t floats,
                                   float* d_children) override;

private:
    CombineBackwardFunction combine_backward_;
};

/// Of cover_of_blocks with the same `first_block`, `summaries` [blocks, floats] and its `scratch` as it left it:
/// d_cover, one for each node of the list, flows down to the blocks and is added to d_summaries [blocks, floats],
/// contiguous. `d_scratch`: cover_scratch_floats(blocks, floats) floats, overwritten. Throws InternalError when a shape
/// is another.
void cover_of_blocks_backward(std::int64_t first_block, MatrixView<const float> summaries, const float* scratch,
                              const NodeSummaries& d_cover, SummaryGradients& gradients, float* d_scratch,
                              MatrixView<float> d_summaries);

}  // namespace fenwick
