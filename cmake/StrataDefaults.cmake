# Choices for whoever builds Strata itself; a project that embeds it makes its own.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)  # for clang-tidy and editors

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(STRATA_CCACHE ccache)
  mark_as_advanced(STRATA_CCACHE)
  if(STRATA_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${STRATA_CCACHE})
  endif()
endif()
