// One layer's way over the rows of a batch, there and back.
//
//   forward:    x -> x + out_proj(read_out(mixer(gates(conv(in_proj(norm(x))))))) = m,   m -> m + mlp(norm(m)) = y
//   backward:   everything up to m is formed again from x (or from rows that were kept), then d_y -> d_m -> d_x, and
//   the
//               parameters' gradients are added to
#pragma once

#include <cstdint>

#include "parallel/communicator.h"
#include "worker/arena.h"
#include "worker/families/families.h"
#include "worker/training/batch.h"
#include "worker/training/document_mixer.h"
#include "worker/training/gradients.h"

namespace fenwick {

/// The widest rows of a layer, before the gates: what `recompute` forms again and what it saves when it does not.
struct ConvolvedRows {
    MatrixView<float> projected;  ///< [rows, in_proj.outputs]
    MatrixView<float> convolved;  ///< [rows, conv_channels]
    MatrixView<float> halos;      ///< [documents * halo_rows, conv_channels]: the rows before each document's shard
};

/// Scratch memory that passes share, one after the other.
struct LayerMemory {
    Arena layer;  ///< for the layer at hand
    Arena step;   ///< for the step at hand
};

class LayerPass {
public:
    /// All outlive this object.
    LayerPass(const Batch& batch, float norm_eps, Communicator& group, LayerMemory& memory, int threads)
        : batch_(batch),
          eps_(norm_eps),
          group_(group),
          threads_(threads),
          arena_(memory.layer),
          workspace_(memory.step) {}

    /// Floats of the three matrices of ConvolvedRows.
    [[nodiscard]] std::int64_t kept_floats(const LayerParts& layer) const;
    /// The three in a row at `memory`.
    [[nodiscard]] ConvolvedRows kept_at(const LayerParts& layer, float* memory) const;

    /// Collective. x [rows, hidden] = the layer's output rows. Where `kept` is given it is filled.
    void forward(const LayerParts& layer, MatrixView<float> x, const ConvolvedRows* kept);

    /// Collective. `x`: the layer's input rows; `kept`: what `forward` filled, or null: it is formed again. d [rows,
    /// hidden]: the gradient of the layer's output comes in, that of its input goes out.
    void backward(const LayerParts& layer, MatrixView<const float> x, const ConvolvedRows* kept, MatrixView<float> d,
                  Gradients& gradients);

private:
    /// What `mix` leaves for the way back.
    struct Mixed {
        MixerInputs inputs;
        std::vector<DocumentMixer> documents;
        MatrixView<float> o;  // [rows, heads * d_v]
    };
    void convolve(const LayerParts& layer, MatrixView<const float> x, MatrixView<float> normed,
                  const ConvolvedRows& rows);
    void convolve_backward(const TokenMixer& mixer, const ConvolvedRows& rows, MatrixView<const float> d_convolved,
                           MatrixView<float> d_projected, Gradients& gradients);
    [[nodiscard]] Mixed mix(const TokenMixer& mixer, const ConvolvedRows& rows);
    void mixer_backward(const LayerParts& layer, const ConvolvedRows& rows, Mixed& mixed, MatrixView<const float> y,
                        MatrixView<const float> d, MatrixView<float> d_projected, Gradients& gradients);
    void mlp_backward(const LayerParts& layer, MatrixView<const float> mixed_rows, MatrixView<float> d,
                      Gradients& gradients);
    [[nodiscard]] MatrixView<float> halo_of(const ConvolvedRows& rows, std::size_t document) const;

    const Batch& batch_;
    float eps_;
    Communicator& group_;
    int threads_;
    Arena& arena_;
    Arena& workspace_;
};

}  // namespace fenwick
