# fenwick_library(NAME SOURCES ... DEPENDS ...): a static library of one folder, with the project's flags.
add_library(fenwick_flags INTERFACE)
target_include_directories(fenwick_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
# The C++ compiler's options alone: nvcc, where it takes part, hands a few of them on to it (fenwick_cuda_library).
function(fenwick_cxx_options)
    foreach(option IN LISTS ARGN)
        target_compile_options(fenwick_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${option}>)
    endforeach()
endfunction()
fenwick_cxx_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -march=${FENWICK_ARCH})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms on "text" + std::string(...) (gcc bug 105651).
    fenwick_cxx_options(-Wno-restrict)
endif()
if(FENWICK_WERROR)
    fenwick_cxx_options(-Werror)
endif()
if(FENWICK_SANITIZE)
    fenwick_cxx_options(-fsanitize=address,undefined -fno-omit-frame-pointer)
    target_link_options(fenwick_flags INTERFACE -fsanitize=address,undefined)
    # gcc 12 sees uninitialised values inside <regex> once sanitizers are on.
    fenwick_cxx_options(-Wno-error=maybe-uninitialized)
endif()

function(fenwick_library name)
    cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC fenwick_flags ${ARG_DEPENDS})
endfunction()

# fenwick_build_quickly(): releases of this folder's C++ and of those below are not optimised for speed, -O1 for -O3.
function(fenwick_build_quickly)
    add_compile_options($<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()

# fenwick_cuda_library(NAME SOURCES ... DEPENDS ...): the same with .cu files, for the architectures of
# FENWICK_CUDA_ARCHITECTURES. Only where FENWICK_HAVE_CUDA.
function(fenwick_cuda_library name)
    fenwick_library(${name} ${ARGN})
    # 554: nvcc does not see that MatrixView's conversion is for mutable elements alone.
    target_compile_options(${name} PRIVATE
        $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -diag-suppress=554 -Xcompiler=-Wall,-Wextra,-march=${FENWICK_ARCH}>)
    if(FENWICK_WERROR)
        target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror --Werror=all-warnings>)
    endif()
endfunction()
