# Tests that run the CUDA and NCCL adapters without a GPU (tests/support/standin). The library is
# linked from its objects, with the stand-in where strata::cuda and strata::nccl have the real
# libraries: a real runtime on the link line would take the stand-in's place unnoticed.
add_library(strata_standin_rooms STATIC support/standin/kernels_host.cpp)
target_link_libraries(strata_standin_rooms PRIVATE strata_options strata_standin)
foreach(room base files safetensors cpu posix self tcp virtual layout memory plan optim engine config session cuda nccl
             uring mpi)
  if(TARGET strata_${room})
    target_sources(strata_standin_rooms PRIVATE $<TARGET_OBJECTS:strata_${room}>)
  endif()
endforeach()
# The adapters call the stand-in, which is built on rooms of the library: a cycle.
add_library(strata_on_standin INTERFACE)
target_link_libraries(
  strata_on_standin
  INTERFACE $<LINK_GROUP:RESCAN,strata_standin_rooms,strata_standin,strata_test_support>
            fmt::fmt hwy::hwy Threads::Threads $<$<BOOL:${STRATA_HAS_URING}>:liburing::liburing>
            $<$<BOOL:${STRATA_HAS_MPI}>:MPI::MPI_CXX>)
target_include_directories(strata_on_standin INTERFACE ${PROJECT_SOURCE_DIR}/src
                                                       ${PROJECT_SOURCE_DIR}/include)

strata_test(cuda_device_test SOURCES cuda_device_test.cpp device_conformance.cpp
            LINK strata_on_standin LABELS standin TSAN)
strata_test(nccl_communicator_test SOURCES nccl_communicator_test.cpp communicator_conformance.cpp
            LINK strata_on_standin LABELS standin TSAN)
strata_test(executor_standin_test SOURCES executor_test.cpp support/standin_machine.cpp
            LINK strata_on_standin GTest::gmock LABELS standin)
strata_test(tile_io_standin_test SOURCES tile_io_test.cpp support/standin_machine.cpp
            LINK strata_on_standin GTest::gmock LABELS standin)
strata_test(session_standin_test SOURCES session_test.cpp session_activation_test.cpp session_probe_test.cpp session_schedule_test.cpp session_update_test.cpp
                                         support/standin_machine.cpp support/toy_program.cpp
                                         support/toy_runs.cpp
            LINK strata_on_standin GTest::gmock LABELS standin)
strata_test(seeded_standin_test SOURCES seeded_session_test.cpp support/standin_machine.cpp
                                        support/toy_program.cpp
            LINK strata_on_standin GTest::gmock LABELS standin)
# Hundreds of processes or sessions, which sanitizers see elsewhere.
if(NOT STRATA_SANITIZE)
  strata_test(storage_fault_standin_test
              SOURCES storage_fault_test.cpp support/loop_file_system.cpp support/standin_machine.cpp
                      support/toy_program.cpp
              LINK strata_on_standin GTest::gmock LABELS standin)
  strata_test(ignored_wait_test SOURCES ignored_wait_test.cpp support/toy_program.cpp
              LINK strata_on_standin LABELS standin)
endif()
strata_test(standin_bytes_test SOURCES standin_bytes_test.cpp support/standin_machine.cpp
                                       support/toy_program.cpp
            LINK strata_on_standin GTest::gmock LABELS standin)
if(TARGET train_gpt_objects)
  strata_test(train_gpt_standin_test
              SOURCES train_gpt_trainer_test.cpp support/standin_machine.cpp
                      support/reference_trainer.cpp $<TARGET_OBJECTS:train_gpt_objects>
              LINK strata_on_standin PkgConfig::openblas GTest::gmock LABELS standin)
  target_include_directories(train_gpt_standin_test PRIVATE ${PROJECT_SOURCE_DIR}/examples)
endif()

# No real runtime came in by the back door.
foreach(program cuda_device_test nccl_communicator_test session_standin_test seeded_standin_test)
  add_test(NAME standin:${program}_links_no_cuda
           COMMAND sh -c "! ldd $1 | grep -E 'libcudart|libnccl|libcuda[.]'" sh $<TARGET_FILE:${program}>)
  set_tests_properties(standin:${program}_links_no_cuda PROPERTIES LABELS standin)
endforeach()
