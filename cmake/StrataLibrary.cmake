# strata::strata, the library that a trainer links: the object files of all rooms but the adapters
# that need software of their own. Each of those is a library by itself (strata::mpi).
add_library(strata STATIC)
add_library(strata::strata ALIAS strata)
set_target_properties(strata PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(strata PUBLIC cxx_std_20)
target_include_directories(strata PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                         $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(strata PRIVATE fmt::fmt Threads::Threads
                      PUBLIC $<BUILD_INTERFACE:strata_sanitizer>)
foreach(room base files cpu posix self layout memory plan optim engine config session)
  target_sources(strata PRIVATE $<TARGET_OBJECTS:strata_${room}>)
endforeach()

# The factory in strata::strata names the adapter, and the adapter uses `base`: a cycle of static
# libraries, which CMake resolves by naming both twice on the link line.
if(TARGET strata_mpi)
  add_library(strata_mpi_library STATIC $<TARGET_OBJECTS:strata_mpi>)
  add_library(strata::mpi ALIAS strata_mpi_library)
  set_target_properties(strata_mpi_library PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME mpi
                        OUTPUT_NAME strata_mpi)
  target_link_libraries(strata_mpi_library PRIVATE strata MPI::MPI_CXX)
  target_link_libraries(strata PRIVATE strata_mpi_library)
endif()
