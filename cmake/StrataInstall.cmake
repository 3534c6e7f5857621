# cmake --install, and the package that find_package(strata) reads.
include(CMakePackageConfigHelpers)

set(strata_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/strata)
set(strata_installed_targets strata)
set(strata_package_needs_mpi OFF)
if(TARGET strata_mpi_library)
  list(APPEND strata_installed_targets strata_mpi_library)
  set(strata_package_needs_mpi ON)
endif()

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
              ${CMAKE_CURRENT_BINARY_DIR}/strataConfigVersion.cmake
        DESTINATION ${strata_package_dir})
