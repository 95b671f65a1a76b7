#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <limits>

#include "core/cuda/check.h"
#include "core/errors.h"

namespace fenwick::cuda {
namespace {

constexpr std::uint32_t kBoxColumns = 64;
constexpr std::uint32_t kBoxRows = 64;

/// From the driver by name: the programs do not link with it, for they also run without a GPU.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    constexpr unsigned kVersion = 12000;
    FENWICK_CUDA_CHECK(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kVersion, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || function == nullptr) {
        throw UnavailableError(
            "mixer: the NVIDIA driver has no cuTensorMapEncodeTiled, which GPUs of compute capability 9.0 need; "
            "install "
            "a driver for CUDA 12.0 or newer, or use --device cpu");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

bool has_accelerator() {
    int device = 0;
    int major = 0;
    FENWICK_CUDA_CHECK(cudaGetDevice(&device));
    FENWICK_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
}

}  // namespace

CUtensorMap make_tensor_map(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    CUtensorMap map{};
    if (!has_accelerator()) return map;
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // of a box's coordinates
    if (rows > kMost || columns > kMost) {
        throw InternalError(
            fmt::format("mixer: a matrix of {} rows and {} columns; its boxes have 32-bit coordinates: use "
                        "smaller passes",
                        rows, columns));
    }
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = encode_function();
    const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};  // bytes
    const cuuint32_t box[2] = {kBoxColumns, kBoxRows};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides,
                                   box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        throw UnavailableError(fmt::format(
            "mixer: the driver refuses a matrix of {} rows and {} columns, {} elements apart (cuTensorMapEncodeTiled: "
            "error {})",
            rows, columns, stride, static_cast<int>(result)));
    }
    return map;
}

}  // namespace fenwick::cuda
