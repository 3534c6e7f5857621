# strata::strata, the library that a trainer links: the object files of all rooms but the adapters
# that need software of their own. Each of those is a library by itself (strata::mpi).
add_library(strata STATIC)
add_library(strata::strata ALIAS strata)
set_target_properties(strata PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(strata PUBLIC cxx_std_20)
target_include_directories(strata PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                         $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(strata PRIVATE fmt::fmt hwy::hwy Threads::Threads
                      PUBLIC $<BUILD_INTERFACE:strata_sanitizer>)
foreach(room base files safetensors cpu posix self tcp virtual layout memory plan optim engine config
             session)
  target_sources(strata PRIVATE $<TARGET_OBJECTS:strata_${room}>)
endforeach()

# strata_adapter_library(name LINK ...): the room `name` as the library strata::name.
# The factory in strata::strata names the adapter, and the adapter uses `base`: a cycle of static
# libraries, which CMake resolves by naming both twice on the link line.
function(strata_adapter_library name)
  cmake_parse_arguments(ADAPTER "" "" "LINK" ${ARGN})
  if(NOT TARGET strata_${name})
    return()
  endif()
  set(library strata_${name}_library)
  add_library(${library} STATIC $<TARGET_OBJECTS:strata_${name}>)
  add_library(strata::${name} ALIAS ${library})
  set_target_properties(${library} PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME ${name}
                        OUTPUT_NAME strata_${name})
  target_link_libraries(${library} PRIVATE strata ${ADAPTER_LINK})
  target_link_libraries(strata PRIVATE ${library})
endfunction()
strata_adapter_library(cuda LINK CUDA::cudart)
if(TARGET strata_cuda_kernels)
  target_sources(strata_cuda_library PRIVATE $<TARGET_OBJECTS:strata_cuda_kernels>)
endif()
strata_adapter_library(nccl LINK nccl::nccl CUDA::cudart)
strata_adapter_library(uring LINK liburing::liburing)
strata_adapter_library(mpi LINK MPI::MPI_CXX)
