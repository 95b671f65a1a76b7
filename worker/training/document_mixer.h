// One document's way through a layer's mixer on this rank, there and back: block summaries, exchange, outputs, and the
// mirror of each (DESIGN section 3, "Backward").
#pragma once

#include <vector>

#include "kernels/backward/mixer.h"
#include "parallel/communicator.h"
#include "parallel/exchange_backward.h"
#include "worker/arena.h"
#include "worker/training/batch.h"

namespace fenwick {

class DocumentMixer {
public:
    /// `document` and the memory of `arena`, until its next reset, outlive this object.
    DocumentMixer(const MixerShape& shape, const DocumentRows& document, Communicator& group, Arena& arena, int threads)
        : shape_(shape), document_(document), group_(group), arena_(arena), threads_(threads) {}

    /// Collective for a document over ranks. `inputs`: this document's rows; o [rows, heads * value_dim] = the mixer's
    /// output. `workspace` lends memory for the call alone.
    void forward(const MixerInputs& inputs, MatrixView<float> o, Arena& workspace);

    /// Collective as `forward`, which came before with the same inputs: `d_o` to the gradients of the inputs (added
    /// to).
    void backward(const MixerInputs& inputs, MatrixView<const float> d_o, const MixerGradients& gradients,
                  Arena& workspace);

private:
    void exchange();
    void exchange_backward(const std::vector<float*>& d_entering, MatrixView<float> d_summaries, Arena& workspace);

    const MixerShape& shape_;
    const DocumentRows& document_;
    Communicator& group_;
    Arena& arena_;
    int threads_;
    MatrixView<float> summaries_;  // of whole blocks that anything reads, [blocks, summary_floats]
    float* cover_scratch_ = nullptr;
    NodeSummaries entering_;
    ExchangeTape tape_;
};

}  // namespace fenwick
