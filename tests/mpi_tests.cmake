# Tests that mpirun starts. Each of CommunicatorFailures gets processes of its own, since it may
# leave them without MPI.
add_executable(mpi_communicator_test communicator_conformance.cpp mpi_communicator_test.cpp)
target_link_libraries(mpi_communicator_test PRIVATE strata_mpi strata_cpu strata_base GTest::gmock
                                                    strata_options)
target_include_directories(mpi_communicator_test PRIVATE ${PROJECT_SOURCE_DIR}/tests)

function(strata_mpi_test name ranks transport filter)
  add_test(NAME mpi:${name}
           COMMAND ${MPIEXEC_EXECUTABLE} --allow-run-as-root --oversubscribe --bind-to none
                   ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:mpi_communicator_test>
                   --transport=${transport} --gtest_filter=${filter})
  # Leak reports would be about MPI itself.
  set_tests_properties(mpi:${name} PROPERTIES LABELS "mpi" TIMEOUT 300 PROCESSORS ${ranks}
                       ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
endfunction()

strata_mpi_test(conformance_1 1 windows -*CommunicatorFailures*)
foreach(transport windows messages)
  foreach(ranks 2 4)
    strata_mpi_test(conformance_${transport}_${ranks} ${ranks} ${transport}
                    -*CommunicatorFailures*)
  endforeach()
  foreach(failure ExchangeOfDifferentSizesDiverges DifferentCallsDiverge AbortEndsAPeersExchange
                  AbortEndsAPeersCollective ACollectiveTimesOutAndNamesTheRank
                  AnExchangeTimesOutAndNamesTheRank ARankThatClosesEarlyIsNamed)
    strata_mpi_test(${failure}_${transport} 3 ${transport} *CommunicatorFailures.${failure}/*)
  endforeach()
endforeach()

add_executable(mpi_rank_program support/mpi_rank_program.cpp)
target_link_libraries(mpi_rank_program PRIVATE strata_mpi strata_cpu strata_base strata_options)
target_include_directories(mpi_rank_program PRIVATE ${PROJECT_SOURCE_DIR}/tests)

strata_test(mpi_rank_loss_test SOURCES mpi_rank_loss_test.cpp LINK strata_mpi strata_base
            LABELS mpi)
target_compile_definitions(mpi_rank_loss_test
                           PRIVATE STRATA_MPIEXEC="${MPIEXEC_EXECUTABLE}"
                                   STRATA_MPI_RANK_PROGRAM="$<TARGET_FILE:mpi_rank_program>")
add_dependencies(mpi_rank_loss_test mpi_rank_program)

# Not a test: mpirun -n 2 --bind-to none communicator_bench.
add_executable(communicator_bench bench/communicator_bench.cpp)
target_link_libraries(communicator_bench PRIVATE strata_mpi strata_cpu strata_base strata_options)
target_compile_options(communicator_bench PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O3>)
