# td_library(name SOURCES a.c ... [DEPS lib ...])   a static library; its headers are found from the root
function(td_library name)
    cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
    add_library(${name} STATIC ${A_SOURCES})
    target_link_libraries(${name} PUBLIC ${A_DEPS} Threads::Threads m)
endfunction()

# td_program(name SOURCES main.c [DEPS lib ...])    lands in build/<preset>/bin
function(td_program name)
    cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
    add_executable(${name} ${A_SOURCES})
    target_link_libraries(${name} PRIVATE ${A_DEPS} Threads::Threads m)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

# td_test(name SOURCES t.c ... [DEPS lib ...] [LABELS unit ...] [TIMEOUT seconds] [SERIAL])
# A cmocka program, run by ctest from the source root so that tests find their data by relative path.
function(td_test name)
    cmake_parse_arguments(A "SERIAL" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
    add_executable(${name} ${A_SOURCES})
    target_link_libraries(${name} PRIVATE ${A_DEPS} PkgConfig::CMOCKA Threads::Threads m)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    if(NOT A_TIMEOUT)
        set(A_TIMEOUT 120)
        if(TANDEM_SANITIZE) # several times slower, and machines are shared
            set(A_TIMEOUT 600)
        endif()
    endif()
    if(NOT A_LABELS)
        set(A_LABELS unit)
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}")
    if(TANDEM_SANITIZE MATCHES "thread")
        set_property(TEST ${name} APPEND PROPERTY
            ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
        # UCX hooks madvise(), which a thread calls when ThreadSanitizer has let go of it already.
        set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "UCX_MEM_MMAP_HOOK_MODE=none")
    endif()
    if(A_SERIAL)
        set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
    endif()
endfunction()
