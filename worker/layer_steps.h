// The steps of a layer that prefill and training share; token_mixer.h says how they follow each other.
//
// What works row by row takes rows of any number of documents that lie behind each other. What does not (convolution,
// exchange, mixer) takes one document's rows, and the plan that says who holds the others. The arena lends workspace.
#pragma once

#include <vector>

#include "kernels/mixer.h"
#include "parallel/communicator.h"
#include "parallel/exchange.h"
#include "parallel/halo.h"
#include "parallel/shard_plan.h"
#include "worker/arena.h"
#include "worker/families/families.h"

namespace fenwick {

/// normed = norm(x) [rows, hidden], projected = normed in_proj^T [rows, in_proj.outputs].
void project_rows(const LayerParts& layer, float eps, MatrixView<const float> x, MatrixView<float> normed,
                  MatrixView<float> projected, Arena& arena, int threads);

/// x += y out_proj^T, with y the mixer's read-out.
void add_mixed_rows(const LayerParts& layer, MatrixView<const float> y, MatrixView<float> x, Arena& arena, int threads);

/// x += mlp(norm(x)), where the layer has an MLP. `normed` [rows, hidden] is overwritten.
void add_mlp_rows(const LayerParts& layer, float eps, MatrixView<float> normed, MatrixView<float> x, Arena& arena,
                  int threads);

/// Who sends whom the rows that the mixer's convolution reads before a shard.
[[nodiscard]] HaloPlan plan_halo(const ShardPlan& plan, const TokenMixer& mixer);

/// Collective. Fills `halo` [halo_rows, conv_channels] and convolves `projected`'s columns into `convolved` [rows,
/// conv_channels]. `carried`, `carried_out`: exchange_halo's, on rank 0 of the plan.
void convolve_shard(const TokenMixer& mixer, const HaloPlan& halos, Communicator& comm,
                    MatrixView<const float> projected, MatrixView<const float> carried, MatrixView<float> carried_out,
                    MatrixView<float> halo, MatrixView<float> convolved, int threads);

/// summaries [blocks, summary_floats(shape)], contiguous: of the first `blocks` whole blocks.
void summarise_blocks(const MixerShape& shape, const MixerInputs& inputs, MatrixView<float> summaries, Arena& arena,
                      int threads);

/// o = the mixer's output rows. `entering`: the nodes that enter the shard; `summaries`: of its whole blocks.
void mix_shard(const MixerShape& shape, const MixerInputs& inputs, const Shard& shard, const NodeSummaries& entering,
               MatrixView<const float> summaries, MatrixView<float> o, Arena& arena, int threads);

/// A list as kernels/mixer.h takes it; valid as long as the list's summaries are.
[[nodiscard]] std::vector<EnteringNode> entering_nodes(const NodeSummaries& list);

}  // namespace fenwick
