# CUDA, where there is a toolkit with its compiler and cuBLASLt. Sets FENWICK_HAVE_CUDA and enables the language.
find_package(CUDAToolkit 12.0 QUIET)
if(CUDAToolkit_FOUND AND TARGET CUDA::cublasLt AND CUDAToolkit_NVCC_EXECUTABLE)
    set(FENWICK_HAVE_CUDA ON)
elseif(FENWICK_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FENWICK_CUDA=ON, but no CUDA toolkit (12.0 or newer, with nvcc and cuBLASLt) was found: "
        "set CUDAToolkit_ROOT, or configure with FENWICK_CUDA=OFF")
endif()

if(FENWICK_HAVE_CUDA)
    set(CMAKE_CUDA_ARCHITECTURES ${FENWICK_CUDA_ARCHITECTURES})
    if(NOT DEFINED CMAKE_CUDA_COMPILER)
        set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
    endif()
    if(FENWICK_CCACHE)
        set(CMAKE_CUDA_COMPILER_LAUNCHER ${FENWICK_CCACHE})
    endif()
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25.1 does not know that nvcc takes it
    endif()
    # A program that is carried to a machine with GPUs finds the libraries that were put beside it.
    list(APPEND CMAKE_BUILD_RPATH "$ORIGIN")
endif()

# NCCL, for worlds of several GPUs. Without it there is one rank and one GPU. Sets FENWICK_HAVE_NCCL and, where it is there,
# the target fenwick_nccl, which also defines the name for the code.
set(FENWICK_HAVE_NCCL OFF)
if(FENWICK_HAVE_CUDA AND NOT FENWICK_NCCL STREQUAL "OFF")
    find_path(FENWICK_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(FENWICK_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
    if(FENWICK_NCCL_INCLUDE AND FENWICK_NCCL_LIBRARY)
        set(FENWICK_HAVE_NCCL ON)
        add_library(fenwick_nccl INTERFACE)
        target_include_directories(fenwick_nccl SYSTEM INTERFACE ${FENWICK_NCCL_INCLUDE})
        target_link_libraries(fenwick_nccl INTERFACE ${FENWICK_NCCL_LIBRARY})
        target_compile_definitions(fenwick_nccl INTERFACE FENWICK_NCCL)
    elseif(FENWICK_NCCL STREQUAL "ON")
        message(FATAL_ERROR "FENWICK_NCCL=ON, but NCCL (nccl.h and its library) was not found: set FENWICK_NCCL_INCLUDE and "
            "FENWICK_NCCL_LIBRARY, or configure with FENWICK_NCCL=OFF")
    endif()
elseif(FENWICK_NCCL STREQUAL "ON")
    message(FATAL_ERROR "FENWICK_NCCL=ON needs CUDA")
endif()
