// Only what kernels/cuda/matmul.h names: matmul_host.cc has the products.
#pragma once
#include "cuda_on_host.h"
typedef void* cublasLtHandle_t;
