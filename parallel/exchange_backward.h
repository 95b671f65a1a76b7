// Gradients through the exchange: the mirror of exchange.h (DESIGN section 3, "Backward").
//
// Let the loss be the sum of the ranks' parts, rank q's part depending on the nodes of entering(q) = cover(0, f_q),
// with gradients d_entering(q). Then for every node n of rank p's own cover(f_p, f_(p+1))
//
//   d_own_cover(p)[n] = sum over q > p of  d entering(q) / d n  applied to  d_entering(q)
//
// The rounds of the entering schedule run in reverse, last first. Every list that a rank holds has a gradient there,
// zero at first; that of prefix(q) is d_entering(q). Round b, p and q = p xor 2^b, p < q, undoes the joins and
// messages:
//
//   node n = combine(l, r) formed after the round:   d_l, d_r += combine_backward(l, r, d_n)
//   q sends d of the group(p) that it got:           d_group(p) += received        (at p)
//   p sends d of the group(q) that it got, if any:   d_group(q) += received        (at q)
//
// At the end d_group(p), by then of rank p's own blocks alone, is d_own_cover(p). Messages are those of the schedule
// with sender and receiver changed: as many, of the same sizes, in ceil(log2 P) rounds; the schedule has only messages
// that some entering list depends on, so every gradient sent is of something. Sums are taken in the order of the
// schedule: the same bits each time on a world of the same size.
#pragma once

#include <span>

#include "parallel/exchange.h"
#include "parallel/node_gradients.h"

namespace fenwick {

/// Collective: every rank calls it with the tape of the same run_exchange, once or more. `memory` and `gradients` are
/// of the place where the tape's nodes lie. d_entering[i]: gradient of node i of the tape's `entering`, as many floats
/// as a summary. Returns the gradients of the tape's `own_cover`, node for node, in memory of their own: zeros where
/// nothing depends on one. Nodes carried in from a previous pass are constants: their gradients are not formed.
/// Throws InternalError when the tape is another rank's or world's or their number another, PeerLostError when a peer
/// failed.
[[nodiscard]] NodeSummaries run_exchange_backward(const ExchangeTape& tape, ExchangeMemory& memory,
                                                  SummaryGradients& gradients,
                                                  std::span<const float* const> d_entering);

/// The same in host memory.
[[nodiscard]] NodeSummaries run_exchange_backward(const ExchangeTape& tape, Communicator& comm,
                                                  const CombineBackwardFunction& combine_backward,
                                                  std::span<const float* const> d_entering);

}  // namespace fenwick
