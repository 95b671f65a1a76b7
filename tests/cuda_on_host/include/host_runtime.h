// The runtime's calls that Fenwick makes: device memory is host memory, everything is done at once.
#pragma once
#include "cuda_on_host.h"

typedef int cudaError_t;
typedef void* cudaStream_t;
typedef void* cudaEvent_t;
enum {
    cudaSuccess = 0,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNoDevice = 100,
    cudaErrorInsufficientDriver = 35,
    cudaErrorSystemDriverMismatch = 803,
    cudaErrorInitializationError = 3,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorNotReady = 600
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum { cudaDevAttrMaxSharedMemoryPerBlockOptin = 97, cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventDefault = 0 };
inline cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
inline cudaError_t cudaPeekAtLastError() {
    return cudaSuccess;
}
inline const char* cudaGetErrorName(cudaError_t) {
    return "cudaError";
}
inline const char* cudaGetErrorString(cudaError_t) {
    return "error";
}
inline cudaError_t cudaGetDevice(int* d) {
    *d = 0;
    return 0;
}
enum { cudaDevAttrMultiProcessorCount = 16 };
// So few multiprocessors that thread blocks which take one piece of work after the other do so in small tests.
inline cudaError_t cudaDeviceGetAttribute(int* v, int attribute, int) {
    *v = attribute == cudaDevAttrMultiProcessorCount ? 2 : 227 * 1024;
    return 0;
}
template <class F>
cudaError_t cudaFuncSetAttribute(F*, int, int) {
    return 0;
}
cudaError_t cudaMalloc(void** p, std::size_t n);
cudaError_t cudaFree(void* p);
inline cudaError_t cudaMallocAsync(void** p, std::size_t n, cudaStream_t) {
    return cudaMalloc(p, n);
}
inline cudaError_t cudaFreeAsync(void* p, cudaStream_t) {
    return cudaFree(p);
}
inline cudaError_t cudaMallocHost(void** p, std::size_t n) {
    return cudaMalloc(p, n);
}
inline cudaError_t cudaFreeHost(void* p) {
    return cudaFree(p);
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind, cudaStream_t = nullptr) {
    std::memmove(to, from, n);
    return 0;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t n, cudaMemcpyKind) {
    std::memmove(to, from, n);
    return 0;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t tp, const void* from, std::size_t fp, std::size_t w,
                                     std::size_t h, cudaMemcpyKind, cudaStream_t = nullptr) {
    for (std::size_t i = 0; i < h; ++i)
        std::memmove(static_cast<char*>(to) + i * tp, static_cast<const char*>(from) + i * fp, w);
    return 0;
}
inline cudaError_t cudaMemsetAsync(void* to, int v, std::size_t n, cudaStream_t = nullptr) {
    std::memset(to, v, n);
    return 0;
}
inline cudaError_t cudaMemset2DAsync(void* to, std::size_t tp, int v, std::size_t w, std::size_t h,
                                     cudaStream_t = nullptr) {
    for (std::size_t i = 0; i < h; ++i) std::memset(static_cast<char*>(to) + i * tp, v, w);
    return 0;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return 0;
}
inline cudaError_t cudaDeviceSynchronize() {
    return 0;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
    *s = nullptr;
    return 0;
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
    *s = nullptr;
    return 0;
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) {
    *a = *b = 0;
    return 0;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) {
    return 0;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) {
    return 0;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
    *e = nullptr;
    return 0;
}
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
    return 0;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) {
    return 0;
}
inline cudaError_t cudaEventQuery(cudaEvent_t) {
    return 0;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) {
    return 0;
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
    *ms = 1.0F;
    return 0;
}
struct cudaFuncAttributes {
    int binaryVersion;
};
template <class F>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, F*) {
    return 0;
}
enum { cudaErrorCudartUnloading = 4, cudaHostAllocDefault = 0 };
inline cudaError_t cudaHostAlloc(void** p, std::size_t n, unsigned) {
    return cudaMalloc(p, n);
}
