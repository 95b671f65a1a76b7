// Rows on the device for the tests of the GPU kernels: random values that the operand type holds exactly, poisoned
// outputs, and comparisons.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/cuda/device_buffer.h"
#include "core/cuda/stream.h"
#include "core/tensor.h"
#include "kernels/cuda/convert.h"

namespace fenwick::test {

using cuda::Operand;

inline const char* operand_name(Operand operand) {
    return operand == Operand::kBf16 ? "bf16" : "fp32";
}

/// The nearest value of the operand type.
inline float rounded(Operand operand, float x) {
    if (operand == Operand::kFp32) return x;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) & 0xFFFF0000U;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

inline std::vector<float> random_values(std::int64_t count, std::uint64_t seed, Operand operand = Operand::kFp32,
                                        float scale = 1.0F) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0F, scale);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = rounded(operand, normal(random));
    return values;
}

inline std::vector<double> doubles(const std::vector<float>& x) {
    return {x.begin(), x.end()};
}

/// Values of the operand type (or fp32) on the device.
class DeviceRows {
public:
    DeviceRows(Operand operand, const std::vector<float>& values, cudaStream_t stream)
        : DeviceRows(operand, static_cast<std::int64_t>(values.size()), stream) {
        cuda::DeviceBuffer<float> staging(count_, stream);
        FENWICK_CUDA_CHECK(
            cudaMemcpyAsync(staging.data(), values.data(), staging.bytes(), cudaMemcpyHostToDevice, stream));
        cuda::to_operand(operand_, staging.data(), data(), count_, stream);
        FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
    }
    /// Poisoned: every byte 0xFF, a NaN in both types.
    DeviceRows(Operand operand, std::int64_t count, cudaStream_t stream)
        : operand_(operand),
          count_(count),
          stream_(stream),
          memory_(count * (operand == Operand::kBf16 ? 2 : 4), stream) {
        FENWICK_CUDA_CHECK(cudaMemsetAsync(memory_.data(), 0xFF, memory_.bytes(), stream));
    }
    [[nodiscard]] void* data() { return memory_.data(); }
    [[nodiscard]] float* floats() { return reinterpret_cast<float*>(memory_.data()); }

    [[nodiscard]] std::vector<float> download() {
        std::vector<float> values(static_cast<std::size_t>(count_));
        cuda::DeviceBuffer<float> staging(count_, stream_);
        cuda::from_operand(operand_, data(), staging.data(), count_, stream_);
        FENWICK_CUDA_CHECK(
            cudaMemcpyAsync(values.data(), staging.data(), staging.bytes(), cudaMemcpyDeviceToHost, stream_));
        FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream_));
        return values;
    }

private:
    Operand operand_;
    std::int64_t count_;
    cudaStream_t stream_;
    cuda::DeviceBuffer<unsigned char> memory_;
};

/// Largest |got - want| / (absolute + relative |want|); infinite for a NaN that `want` has not. At most 1 passes.
inline double worst_ratio(const std::vector<float>& got, const std::vector<double>& want, double absolute,
                          double relative) {
    if (got.size() != want.size()) return INFINITY;
    double worst = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double ratio =
            std::fabs(static_cast<double>(got[i]) - want[i]) / (absolute + relative * std::fabs(want[i]));
        if (!(ratio <= worst)) worst = std::isnan(ratio) ? INFINITY : ratio;
    }
    return worst;
}

/// Relative error of an output of the operand type: one rounding to bf16 is 2^-9, doubled because the fp32 value before
/// it may lie on the other side of a tie; in fp32 `roundings` of 2^-24 each.
inline double relative_bound(Operand operand, double roundings) {
    return (operand == Operand::kBf16 ? 0x1p-8 : 0.0) + roundings * 0x1p-24;
}

}  // namespace fenwick::test
