# Installs this build to a fresh prefix, then configures, builds and runs the downstream project.
set(downstream_dir ${CMAKE_CURRENT_BINARY_DIR}/downstream)
add_test(NAME downstream:clean COMMAND ${CMAKE_COMMAND} -E rm -rf ${downstream_dir})
add_test(NAME downstream:install
         COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${downstream_dir}/prefix)
add_test(
  NAME downstream:find_package
  COMMAND
    ${CMAKE_CTEST_COMMAND} --build-and-test ${CMAKE_CURRENT_SOURCE_DIR}/downstream
    ${downstream_dir}/build --build-generator ${CMAKE_GENERATOR} --build-options
    -DCMAKE_PREFIX_PATH=${downstream_dir}/prefix -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}
    -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} --test-command consumer)
set_tests_properties(downstream:clean PROPERTIES FIXTURES_SETUP downstream_clean)
set_tests_properties(downstream:install PROPERTIES FIXTURES_REQUIRED downstream_clean
                                                   FIXTURES_SETUP downstream_prefix)
set_tests_properties(downstream:find_package PROPERTIES FIXTURES_REQUIRED downstream_prefix)
set_tests_properties(downstream:clean downstream:install downstream:find_package
                     PROPERTIES LABELS downstream TIMEOUT 300)
