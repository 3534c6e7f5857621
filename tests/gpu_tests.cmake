# Tests on the GPUs of this machine, with the real CUDA runtime and NCCL (label `gpu`). Without a GPU
# they are skipped and show that everything links. tools/gpu_check.sh runs them, and gpu_bench.

# strata_gpu_test(NAME SOURCES ... LINK ...): one ctest for the whole program.
function(strata_gpu_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LINK} GTest::gmock_main strata_options)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  add_test(NAME gpu:${name} COMMAND ${name})
  set_tests_properties(gpu:${name} PROPERTIES LABELS gpu TIMEOUT 300
    SKIP_REGULAR_EXPRESSION "no NVIDIA driver is installed;no GPU is visible;NVIDIA driver supports")
endfunction()

strata_gpu_test(gpu_conformance_test
                SOURCES gpu/gpu_device_test.cpp device_conformance.cpp communicator_conformance.cpp
                        support/gpu_machine.cpp
                LINK strata strata_test_support strata_cpu strata_base)
strata_gpu_test(gpu_session_test
            SOURCES session_test.cpp session_schedule_test.cpp session_update_test.cpp seeded_session_test.cpp
                    gpu/gpu_placement_test.cpp support/gpu_machine.cpp support/toy_program.cpp
                    support/toy_runs.cpp
            LINK strata strata_test_support strata_cpu strata_self strata_posix strata_files
                 strata_base)
add_executable(gpu_bench gpu/gpu_bench.cpp)
target_link_libraries(gpu_bench PRIVATE strata strata_test_support strata_cpu strata_base
                                        strata_options)
foreach(program gpu_conformance_test gpu_session_test gpu_bench)
  target_include_directories(${program} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS}
                                                       ${NCCL_INCLUDE_DIR})
endforeach()

# What was built is there: the adapters' symbols, and code for every GPU that was asked for.
add_test(NAME gpu:libraries_hold_what_they_should
         COMMAND ${PROJECT_SOURCE_DIR}/tools/check_cuda_build.sh
                 $<TARGET_FILE:strata_cuda_library> $<TARGET_FILE:strata_nccl_library>
                 "${CMAKE_CUDA_ARCHITECTURES}" "${CUDAToolkit_BIN_DIR}")
set_tests_properties(gpu:libraries_hold_what_they_should PROPERTIES LABELS "gpu;unit")
