# What a build can be told. Everything else follows from these.
option(TANDEM_TESTS "Build the tests" ON)
option(TANDEM_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(TANDEM_WERROR "Treat warnings as errors" OFF)
set(TANDEM_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread; empty for none")
option(TANDEM_RACECHECK "Kernels as compute-sanitizer's racecheck can follow them (tests/run_gpu.sh --sanitize)" OFF)
set(TANDEM_CUDA "AUTO" CACHE STRING "CUDA backend: ON, OFF, or AUTO (on where nvcc is found)")
set_property(CACHE TANDEM_CUDA PROPERTY STRINGS AUTO ON OFF)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # gnu11: glibc's sockets, eventfd and affinity calls
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Assertions guard wrong answers, so they stay on in every build type.
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")

add_compile_options($<$<COMPILE_LANGUAGE:C>:-Wall> $<$<COMPILE_LANGUAGE:C>:-Wextra>
                    $<$<COMPILE_LANGUAGE:C>:-Wshadow> $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
                    $<$<COMPILE_LANGUAGE:C>:-Wvla>)
# On ARM a multiply-add is one rounding where the source says so (kernels/cpu/simd.h) and two elsewhere: left to
# themselves, compilers join what they like, in one copy of a loop and not in another. On x86 only the AVX2 and AVX-512
# copies of the hot loops have multiply-adds (kernels/CMakeLists.txt), and tests hold the rows of each to each other.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    add_compile_options($<$<COMPILE_LANGUAGE:C>:-ffp-contract=off>)
endif()
if(TANDEM_WERROR)
    add_compile_options($<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()
if(TANDEM_SANITIZE)
    add_compile_options(-fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${TANDEM_SANITIZE})
    if(TANDEM_SANITIZE MATCHES "undefined")
        add_compile_options(-fno-sanitize-recover=undefined)
    endif()
endif()
