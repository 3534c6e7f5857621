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
set(strata_cuda_state "no")
if(STRATA_HAS_CUDA)
  set(strata_cuda_state "yes (${CUDAToolkit_VERSION}, ${CUDAToolkit_BIN_DIR}; ${CMAKE_CUDA_ARCHITECTURES})")
endif()
set(strata_nccl_state "no")
if(STRATA_HAS_NCCL)
  set(strata_nccl_state "yes (${nccl_VERSION}, ${NCCL_LIBRARY})")
endif()
set(strata_launcher "${CMAKE_CXX_COMPILER_LAUNCHER}")
if(NOT strata_launcher)
  set(strata_cuda_state "no")
if(STRATA_HAS_CUDA)
  set(strata_cuda_state "yes (${CUDAToolkit_VERSION}, ${CUDAToolkit_BIN_DIR}; ${CMAKE_CUDA_ARCHITECTURES})")
endif()
set(strata_nccl_state "no")
if(STRATA_HAS_NCCL)
  set(strata_nccl_state "yes (${nccl_VERSION}, ${NCCL_LIBRARY})")
endif()
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
     CUDA (STRATA_CUDA=${STRATA_CUDA})  ${strata_cuda_state}
     NCCL (STRATA_NCCL=${STRATA_NCCL})  ${strata_nccl_state}
     sanitizers           ${strata_sanitizers}
     warnings as errors   ${STRATA_WARNINGS_AS_ERRORS}
     tests                ${STRATA_BUILD_TESTS}
     tools and examples   ${STRATA_BUILD_TOOLS}")
