#include "worker/training/layer_pass.h"

#include <algorithm>

#include "kernels/backward/convolution.h"
#include "kernels/backward/matmul.h"
#include "kernels/backward/norm.h"
#include "kernels/norm.h"
#include "parallel/halo.h"
#include "worker/layer_steps.h"

namespace fenwick {
namespace {

template <class T>
MatrixView<T> rows_of(const DocumentRows& document, MatrixView<T> all) {
    if (all.data == nullptr) return {};  // what the algebra or the read-out does not have
    return all.row_range(document.first_row, document.shard.tokens);
}

MixerInputs rows_of(const DocumentRows& document, const MixerInputs& all) {
    return {rows_of(document, all.q),         rows_of(document, all.k),    rows_of(document, all.v),
            rows_of(document, all.log_decay), rows_of(document, all.beta), rows_of(document, all.lambda)};
}

MixerGradients rows_of(const DocumentRows& document, const MixerGradients& all) {
    return {rows_of(document, all.q),         rows_of(document, all.k),    rows_of(document, all.v),
            rows_of(document, all.log_decay), rows_of(document, all.beta), rows_of(document, all.lambda)};
}

// Nothing is carried from pass to pass: no message for the next one.
HaloPlan halo_within(const DocumentRows& document, const TokenMixer& mixer) {
    HaloPlan halos = plan_halo(*document.plan, mixer);
    std::erase_if(halos.pieces, [](const HaloPiece& piece) { return piece.from_carried || piece.to_carried; });
    return halos;
}

}  // namespace

std::int64_t LayerPass::kept_floats(const LayerParts& layer) const {
    const TokenMixer& mixer = *layer.mixer;
    return batch_.rows() * (mixer.in_proj().outputs + mixer.conv_channels()) +
           std::ssize(batch_.documents) * mixer.halo_rows() * mixer.conv_channels();
}

ConvolvedRows LayerPass::kept_at(const LayerParts& layer, float* memory) const {
    const TokenMixer& mixer = *layer.mixer;
    ConvolvedRows rows;
    rows.projected = {memory, batch_.rows(), mixer.in_proj().outputs};
    memory += rows.projected.rows * rows.projected.cols;
    rows.convolved = {memory, batch_.rows(), mixer.conv_channels()};
    memory += rows.convolved.rows * rows.convolved.cols;
    rows.halos = {memory, std::ssize(batch_.documents) * mixer.halo_rows(), mixer.conv_channels()};
    return rows;
}

MatrixView<float> LayerPass::halo_of(const ConvolvedRows& rows, std::size_t document) const {
    const std::int64_t halo_rows = rows.halos.rows / std::ssize(batch_.documents);
    return rows.halos.row_range(static_cast<std::int64_t>(document) * halo_rows, halo_rows);
}

void LayerPass::forward(const LayerParts& layer, MatrixView<float> x, const ConvolvedRows* kept) {
    arena_.reset();
    const ConvolvedRows rows = kept != nullptr ? *kept : kept_at(layer, arena_.take(kept_floats(layer)));
    const MatrixView<float> normed = arena_.matrix(x.rows, x.cols);
    convolve(layer, x, normed, rows);
    const Mixed mixed = mix(*layer.mixer, rows);
    layer.mixer->read_out(rows.projected, rows.convolved, mixed.o, threads_);
    workspace_.reset();
    add_mixed_rows(layer, mixed.o, x, workspace_, threads_);
    add_mlp_rows(layer, eps_, normed, x, workspace_, threads_);
}

void LayerPass::backward(const LayerParts& layer, MatrixView<const float> x, const ConvolvedRows* kept,
                         MatrixView<float> d, Gradients& gradients) {
    const TokenMixer& mixer = *layer.mixer;
    const Linear& in = mixer.in_proj();
    arena_.reset();
    const ConvolvedRows rows = kept != nullptr ? *kept : kept_at(layer, arena_.take(kept_floats(layer)));
    const MatrixView<float> normed = arena_.matrix(x.rows, x.cols);
    if (kept == nullptr) {
        convolve(layer, x, normed, rows);
    } else {
        rms_norm(x, layer.mixer_norm.data(), eps_, normed, threads_);
    }
    Mixed mixed = mix(mixer, rows);
    const MatrixView<float> y = arena_.matrix(x.rows, mixed.o.cols);
    copy_rows(mixed.o, y);
    mixer.read_out(rows.projected, rows.convolved, y, threads_);
    if (layer.mlp != nullptr) {
        const MatrixView<float> sum = arena_.matrix(x.rows, x.cols);
        copy_rows(x, sum);
        workspace_.reset();
        add_mixed_rows(layer, y, sum, workspace_, threads_);
        mlp_backward(layer, sum, d, gradients);
    }
    const MatrixView<float> d_projected = arena_.matrix(x.rows, in.outputs);
    mixer_backward(layer, rows, mixed, y, d, d_projected, gradients);

    workspace_.reset();
    const MatrixView<float> d_normed = workspace_.matrix(x.rows, x.cols);
    float* d_bias = in.bias.size() == 0 ? nullptr : gradients.of(in.bias.data());
    matmul_rows_backward_weight(d_projected, normed, gradients.of(in.matrix()), d_bias, threads_);
    matmul_rows_backward_input(d_projected, in.matrix(), d_normed, false, threads_);
    rms_norm_backward(x, layer.mixer_norm.data(), eps_, d_normed, d, true, gradients.of(layer.mixer_norm.data()),
                      threads_, workspace_.take(norm_backward_workspace_floats(x.cols)));
}

void LayerPass::convolve(const LayerParts& layer, MatrixView<const float> x, MatrixView<float> normed,
                         const ConvolvedRows& rows) {
    const TokenMixer& mixer = *layer.mixer;
    workspace_.reset();
    project_rows(layer, eps_, x, normed, rows.projected, workspace_, threads_);
    for (std::size_t i = 0; i < batch_.documents.size(); ++i) {
        const DocumentRows& document = batch_.documents[i];
        workspace_.reset();
        const std::int64_t carried_rows = group_.rank() == 0 ? mixer.halo_rows() : 0;
        const MatrixView<float> carried = workspace_.matrix(carried_rows, mixer.conv_channels());
        const MatrixView<float> carried_out = workspace_.matrix(carried_rows, mixer.conv_channels());
        convolve_shard(mixer, halo_within(document, mixer), group_, rows_of(document, rows.projected), carried,
                       carried_out, halo_of(rows, i), rows_of(document, rows.convolved), threads_);
    }
}

LayerPass::Mixed LayerPass::mix(const TokenMixer& mixer, const ConvolvedRows& rows) {
    // The gates work in place; the way back needs what they read.
    const MatrixView<float> gate_rows = arena_.matrix(rows.projected.rows, mixer.gate_columns());
    copy_rows(rows.projected.col_range(mixer.gates_first(), mixer.gate_columns()), gate_rows);
    const MatrixView<float> convolved = arena_.matrix(rows.convolved.rows, rows.convolved.cols);
    copy_rows(rows.convolved, convolved);
    Mixed mixed;
    mixed.inputs = mixer.gates(gate_rows, convolved, arena_, threads_);
    const MixerShape& shape = mixer.shape();
    mixed.o = arena_.matrix(rows.projected.rows, shape.heads * shape.value_dim);
    mixed.documents.reserve(batch_.documents.size());
    for (const DocumentRows& document : batch_.documents) {
        workspace_.reset();
        mixed.documents.emplace_back(shape, document, group_, arena_, threads_);
        mixed.documents.back().forward(rows_of(document, mixed.inputs), rows_of(document, mixed.o), workspace_);
    }
    return mixed;
}

void LayerPass::mlp_backward(const LayerParts& layer, MatrixView<const float> mixed_rows, MatrixView<float> d,
                             Gradients& gradients) {
    workspace_.reset();
    const MatrixView<float> normed = workspace_.matrix(d.rows, d.cols);
    const MatrixView<float> d_normed = workspace_.matrix(d.rows, d.cols);
    rms_norm(mixed_rows, layer.mlp_norm.data(), eps_, normed, threads_);
    layer.mlp->backward(normed, d, d_normed, gradients, workspace_, threads_);
    rms_norm_backward(mixed_rows, layer.mlp_norm.data(), eps_, d_normed, d, true, gradients.of(layer.mlp_norm.data()),
                      threads_, workspace_.take(norm_backward_workspace_floats(d.cols)));
}

void LayerPass::mixer_backward(const LayerParts& layer, const ConvolvedRows& rows, Mixed& mixed,
                               MatrixView<const float> y, MatrixView<const float> d, MatrixView<float> d_projected,
                               Gradients& gradients) {
    const TokenMixer& mixer = *layer.mixer;
    const Linear& out = mixer.out_proj();
    const MatrixView<float> d_o = arena_.matrix(y.rows, y.cols);
    const MatrixView<float> d_convolved = arena_.matrix(rows.convolved.rows, rows.convolved.cols);
    float* d_bias = out.bias.size() == 0 ? nullptr : gradients.of(out.bias.data());
    matmul_rows_backward_weight(d, y, gradients.of(out.matrix()), d_bias, threads_);
    matmul_rows_backward_input(d, out.matrix(), d_o, false, threads_);
    workspace_.reset();
    mixer.read_out_backward(rows.projected, rows.convolved, mixed.o, d_o, d_projected, d_convolved, gradients,
                            workspace_, threads_);
    const MixerGradients inputs = mixer.input_gradients(d_projected, d_convolved, arena_);
    for (std::size_t i = 0; i < mixed.documents.size(); ++i) {
        const DocumentRows& document = batch_.documents[i];
        workspace_.reset();
        mixed.documents[i].backward(rows_of(document, mixed.inputs), rows_of(document, d_o), rows_of(document, inputs),
                                    workspace_);
    }
    workspace_.reset();
    mixer.gates_backward(rows.projected, rows.convolved, inputs, d_projected, d_convolved, gradients, workspace_,
                         threads_);
    convolve_backward(mixer, rows, d_convolved, d_projected, gradients);
}

void LayerPass::convolve_backward(const TokenMixer& mixer, const ConvolvedRows& rows,
                                  MatrixView<const float> d_convolved, MatrixView<float> d_projected,
                                  Gradients& gradients) {
    const Convolution convolution = mixer.convolution();
    const MatrixView<float> input = rows.projected.col_range(mixer.conv_first(), mixer.conv_channels());
    const MatrixView<float> d_input = d_projected.col_range(mixer.conv_first(), mixer.conv_channels());
    for (std::size_t i = 0; i < batch_.documents.size(); ++i) {
        const DocumentRows& document = batch_.documents[i];
        workspace_.reset();
        ConvolutionGradients to;
        to.x = rows_of(document, d_input);
        to.halo = workspace_.matrix(mixer.halo_rows(), mixer.conv_channels());
        if (mixer.learns_convolution()) {
            to.weight = gradients.of(convolution.weight);
            if (convolution.bias != nullptr) to.bias = gradients.of(convolution.bias);
        } else {
            const MatrixView<float> unused = workspace_.matrix(convolution.channels, convolution.width);
            zero_rows(unused);
            to.weight = unused.data;
        }
        causal_convolution_backward(convolution, halo_of(rows, i), rows_of(document, input),
                                    rows_of(document, d_convolved), to, threads_);
        if (!document.over_ranks || mixer.halo_rows() == 0) continue;
        exchange_halo_backward(halo_within(document, mixer), group_, to.halo, to.x);
    }
}

}  // namespace fenwick
