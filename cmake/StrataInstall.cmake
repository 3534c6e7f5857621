# cmake --install, and the package that find_package(strata) reads.
include(CMakePackageConfigHelpers)

set(strata_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/strata)
set(strata_installed_targets strata)
foreach(adapter cuda mpi nccl uring)
  set(strata_package_needs_${adapter} OFF)
  if(TARGET strata_${adapter}_library)
    list(APPEND strata_installed_targets strata_${adapter}_library)
    set(strata_package_needs_${adapter} ON)
  endif()
endforeach()

install(TARGETS ${strata_installed_targets} EXPORT strataTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/strata DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT strataTargets NAMESPACE strata:: DESTINATION ${strata_package_dir})

configure_package_config_file(
  cmake/strataConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/strataConfig.cmake
  INSTALL_DESTINATION ${strata_package_dir})
write_basic_package_version_file(
  ${CMAKE_CURRENT_BINARY_DIR}/strataConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/strataConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/strataConfigVersion.cmake cmake/Findliburing.cmake cmake/Findnccl.cmake
        DESTINATION ${strata_package_dir})
