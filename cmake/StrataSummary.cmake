# What this build contains, at a glance.
if(TARGET strata_mpi)
  set(strata_mpi_state "yes (${MPIEXEC_EXECUTABLE})")
else()
  set(strata_mpi_state "no")
endif()
set(strata_uring_state "no")
if(TARGET strata_uring)
  set(strata_uring_state "yes (${LIBURING_LIBRARY})")
endif()
set(strata_launcher "${CMAKE_CXX_COMPILER_LAUNCHER}")
if(NOT strata_launcher)
  set(strata_launcher "none")
endif()
set(strata_sanitizers "${STRATA_SANITIZE}")
if(NOT strata_sanitizers)
  set(strata_sanitizers "none")
endif()
message(STATUS "Strata ${PROJECT_VERSION}
     build type           ${CMAKE_BUILD_TYPE}
     compiler             ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}
     compiler launcher    ${strata_launcher}
     MPI (STRATA_MPI=${STRATA_MPI})  ${strata_mpi_state}
     io_uring (STRATA_URING=${STRATA_URING})  ${strata_uring_state}
     sanitizers           ${strata_sanitizers}
     warnings as errors   ${STRATA_WARNINGS_AS_ERRORS}
     tests                ${STRATA_BUILD_TESTS}
     tools and examples   ${STRATA_BUILD_TOOLS}")
