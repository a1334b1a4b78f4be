# The CUDA backend: where TANDEM_CUDA asks for it, or (AUTO) where nvcc is found. Sets TANDEM_HAS_CUDA.
# Included from the top, so that every program may link with it.
set(TANDEM_HAS_CUDA OFF)
if(NOT TANDEM_CUDA STREQUAL "OFF")
    include(CheckLanguage)
    check_language(CUDA)
    if(TANDEM_SANITIZE AND TANDEM_CUDA STREQUAL "ON")
        message(FATAL_ERROR "TANDEM_CUDA=ON with TANDEM_SANITIZE=${TANDEM_SANITIZE}: CUDA's runtime does not run under "
                            "host sanitizers; set TANDEM_CUDA=OFF")
    elseif(CMAKE_CUDA_COMPILER AND NOT TANDEM_SANITIZE)
        # H100 and H200, and no PTX: a kernel compiled for another chip would be another kernel.
        set(CMAKE_CUDA_ARCHITECTURES 90a-real)
        enable_language(CUDA)
        find_package(CUDAToolkit 12.8 REQUIRED)
        set(TANDEM_HAS_CUDA ON)
    elseif(TANDEM_CUDA STREQUAL "ON")
        message(FATAL_ERROR "TANDEM_CUDA=ON, but nvcc was not found: install the CUDA toolkit, set CUDACXX, or use "
                            "-DTANDEM_CUDA=OFF")
    endif()
endif()
