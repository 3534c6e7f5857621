# What this build contains, at a glance.

# Sets `result` to "yes (DETAIL)" or "no".
function(strata_describe result found detail)
  set(state "no")
  if(found)
    set(state "yes (${detail})")
  endif()
  set(${result} "${state}" PARENT_SCOPE)
endfunction()

strata_describe(strata_mpi_state "${STRATA_HAS_MPI}" "${MPIEXEC_EXECUTABLE}")
strata_describe(strata_uring_state "${STRATA_HAS_URING}" "${LIBURING_LIBRARY}")
strata_describe(strata_cuda_state "${STRATA_HAS_CUDA}"
                "${CUDAToolkit_VERSION}, ${CUDAToolkit_BIN_DIR}; ${CMAKE_CUDA_ARCHITECTURES}")
strata_describe(strata_nccl_state "${STRATA_HAS_NCCL}" "${nccl_VERSION}, ${NCCL_LIBRARY}")
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
     CUDA (STRATA_CUDA=${STRATA_CUDA})  ${strata_cuda_state}
     NCCL (STRATA_NCCL=${STRATA_NCCL})  ${strata_nccl_state}
     sanitizers           ${strata_sanitizers}
     warnings as errors   ${STRATA_WARNINGS_AS_ERRORS}
     tests                ${STRATA_BUILD_TESTS}
     tools and examples   ${STRATA_BUILD_TOOLS}")
