// The sequence-mixing half of a layer: what the families share, and the two steps in which they differ.
//
//   projected = x in_proj^T            columns: what the convolution reads, and the family's gates
//   convolved = conv(projected[conv])  causal, depthwise, SiLU; needs the rows before the shard (halo)
//   inputs    = gates(...)             q, k, v, decay, beta, lambda: the family's own step
//   o         = mixer(inputs)          kernels/mixer.h, with the tree exchange between its two steps
//   y         = read_out(...)          skip, gate, norm: the family's own step
//   x        += y out_proj^T
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backward/mixer.h"
#include "kernels/convolution.h"
#include "kernels/mixer.h"
#include "worker/arena.h"
#include "worker/mixer_steps.h"
#include "worker/training/gradients.h"
#include "worker/training/parameters.h"
#include "worker/weights.h"

namespace fenwick {

class TokenMixer {
public:
    virtual ~TokenMixer() = default;

    [[nodiscard]] const MixerShape& shape() const { return shape_; }
    [[nodiscard]] const Linear& in_proj() const { return in_proj_; }
    [[nodiscard]] const Linear& out_proj() const { return out_proj_; }

    /// Columns of `projected` that the convolution reads: [conv_first(), conv_first() + conv_channels()).
    [[nodiscard]] std::int64_t conv_first() const { return conv_first_; }
    [[nodiscard]] std::int64_t conv_channels() const { return conv_channels_; }
    /// 1 when the family runs without a convolution (SiLU alone).
    [[nodiscard]] std::int64_t conv_width() const { return conv_width_; }
    [[nodiscard]] Convolution convolution() const;
    [[nodiscard]] std::int64_t halo_rows() const { return conv_width_ - 1; }
    /// Whether the convolution's weights are parameters (a family without one has ones, of width 1).
    [[nodiscard]] bool learns_convolution() const { return !loaded_convolutions_.empty(); }

    /// Columns of `projected` that the gates read: the last gate_columns() of them, from gates_first() on.
    [[nodiscard]] std::int64_t gates_first() const { return gates_first_; }
    [[nodiscard]] std::int64_t gate_columns() const { return in_proj_.outputs - gates_first_; }

    /// `gate_rows` [rows, gate_columns] and `convolved` [rows, conv_channels]: both may be changed in place and are
    /// read by the result. read_out reads no column of `convolved` that is changed.
    [[nodiscard]] virtual MixerInputs gates(MatrixView<float> gate_rows, MatrixView<float> convolved, Arena& arena,
                                            int threads) const = 0;

    /// Turns the mixer's output `o` [rows, heads * d_v] into the rows that out_proj reads, in place.
    virtual void read_out(MatrixView<const float> projected, MatrixView<const float> convolved, MatrixView<float> o,
                          int threads) const = 0;

    // Backward, for training. `projected` and `convolved` are the rows as they were before `gates`; `d_projected` and
    // `d_convolved` are shaped as they are, and every step fills its own columns. Parameters' gradients are added to.

    /// Of read_out. `o` [rows, heads * d_v]: the mixer's output, used up. `d_y`: the gradient of read_out's result
    /// comes in, that of `o` goes out. Fills its columns of `d_projected`, and in `d_convolved` those that it reads.
    virtual void read_out_backward(MatrixView<const float> projected, MatrixView<const float> convolved,
                                   MatrixView<float> o, MatrixView<float> d_y, MatrixView<float> d_projected,
                                   MatrixView<float> d_convolved, Gradients& gradients, Arena& arena,
                                   int threads) const = 0;

    /// Where the gradients of the mixer's inputs are to be added up, all zeroed here: columns of `d_projected` and
    /// `d_convolved` where they can lie there, else of the arena.
    [[nodiscard]] virtual MixerGradients input_gradients(MatrixView<float> d_projected, MatrixView<float> d_convolved,
                                                         Arena& arena) const = 0;

    /// Of gates, after read_out_backward and the mixer's. `inputs`: what input_gradients gave, filled. Makes the gates'
    /// columns of `d_projected` and all of `d_convolved` complete.
    virtual void gates_backward(MatrixView<const float> projected, MatrixView<const float> convolved,
                                const MixerGradients& inputs, MatrixView<float> d_projected,
                                MatrixView<float> d_convolved, Gradients& gradients, Arena& arena,
                                int threads) const = 0;

    /// The parameters of both steps.
    [[nodiscard]] virtual MixerSteps steps() const = 0;

    /// All trainable tensors by their names in the checkpoint; those of one buffer follow each other in its order.
    virtual void list_parameters(const ParameterList& list) = 0;

protected:
    /// Depthwise weights [channels, 1, width] (or [channels, width]) of one convolution, into rows [first_channel,
    /// ...).
    void set_convolution(std::int64_t first_column, std::int64_t channels, std::int64_t width, bool with_bias);
    void load_convolution(const WeightReader& weights, const std::string& name, std::int64_t first_channel,
                          std::int64_t channels, bool with_bias);
    /// The convolutions that were loaded, in the order of their channels: their weights, then their biases.
    void list_convolutions(const ParameterList& list);

    MixerShape shape_;
    std::int64_t gates_first_ = 0;
    Linear in_proj_;
    Linear out_proj_;

private:
    struct LoadedConvolution {
        std::string name;
        std::int64_t first_channel = 0;
        std::int64_t channels = 0;
    };
    std::int64_t conv_first_ = 0;
    std::int64_t conv_channels_ = 0;
    std::int64_t conv_width_ = 1;
    Buffer<float> conv_weight_;  // [channels, width]
    Buffer<float> conv_bias_;    // [channels] or empty
    std::vector<LoadedConvolution> loaded_convolutions_;
};

}  // namespace fenwick
