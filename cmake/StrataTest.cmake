# strata_test(NAME SOURCES ... [LINK ...] [LABELS ...] [TSAN] [COMPUTES])
# One GoogleTest program, each of its tests a ctest. Labels: NAME without "_test", LABELS, and
# `tsan` for the programs that the thread sanitizer build runs (target `tsan_tests`). With a
# sanitizer, the tests themselves are compiled without optimization, which takes half as long, but
# for those that say that they compute much.
find_package(GTest REQUIRED)
include(GoogleTest)
add_custom_target(tsan_tests)

function(strata_test name)
  cmake_parse_arguments(TEST "TSAN;COMPUTES" "" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  if(STRATA_SANITIZE AND NOT TEST_COMPUTES)
    list(FILTER TEST_SOURCES EXCLUDE REGEX /)  # what they share computes
    set_source_files_properties(${TEST_SOURCES} PROPERTIES COMPILE_OPTIONS -O0)
  endif()
  target_link_libraries(${name} PRIVATE ${TEST_LINK} GTest::gmock_main strata_options)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  string(REGEX REPLACE "_test$" "" label ${name})
  set(labels ${label} ${TEST_LABELS})
  if(TEST_TSAN)
    list(APPEND labels tsan)
    add_dependencies(tsan_tests ${name})
  endif()
  gtest_discover_tests(${name} TEST_PREFIX ${label}: DISCOVERY_TIMEOUT 60)
  strata_label_discovered(${name} "${labels}")
endfunction()

# gtest_discover_tests() cannot pass a list on, so ctest reads the labels from a file of its own.
# There a program that was built and has no tests becomes a test that fails.
function(strata_label_discovered name labels)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT [=[
if(@name@_TESTS)
  set_tests_properties(${@name@_TESTS} PROPERTIES LABELS "@labels@" TIMEOUT 300)
elseif(EXISTS "@CMAKE_CURRENT_BINARY_DIR@/@name@")
  add_test(@name@_has_no_tests false)
endif()
]=])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()
