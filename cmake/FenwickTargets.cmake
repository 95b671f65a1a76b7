# fenwick_library(NAME SOURCES ... DEPENDS ...): a static library of one folder, with the project's flags.
add_library(fenwick_flags INTERFACE)
target_include_directories(fenwick_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
target_compile_options(fenwick_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
    -march=${FENWICK_ARCH})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms on "text" + std::string(...) (gcc bug 105651).
    target_compile_options(fenwick_flags INTERFACE -Wno-restrict)
endif()
if(FENWICK_WERROR)
    target_compile_options(fenwick_flags INTERFACE -Werror)
endif()
if(FENWICK_SANITIZE)
    target_compile_options(fenwick_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
    target_link_options(fenwick_flags INTERFACE -fsanitize=address,undefined)
    # gcc 12 sees uninitialised values inside <regex> once sanitizers are on.
    target_compile_options(fenwick_flags INTERFACE -Wno-error=maybe-uninitialized)
endif()

function(fenwick_library name)
    cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC fenwick_flags ${ARG_DEPENDS})
endfunction()
