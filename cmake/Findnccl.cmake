# Finds NVIDIA's collective library: nccl::nccl, nccl_FOUND, NCCL_LIBRARY, NCCL_INCLUDE_DIR.
# Looks beside the CUDA toolkit too; NCCL_ROOT names another place.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})

set(nccl_VERSION "")
if(NCCL_INCLUDE_DIR)
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h line REGEX "^#define NCCL_${part} [0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+" nccl_${part} "${line}")
  endforeach()
  set(nccl_VERSION ${nccl_MAJOR}.${nccl_MINOR}.${nccl_PATCH})
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(nccl REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
                                  VERSION_VAR nccl_VERSION)
if(nccl_FOUND AND NOT TARGET nccl::nccl)
  add_library(nccl::nccl UNKNOWN IMPORTED)
  set_target_properties(nccl::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
