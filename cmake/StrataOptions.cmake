# Compile settings of every Strata target, applied per target (no global flags).

# Sanitizers change what must be linked, so whatever links a sanitized object inherits them.
add_library(strata_sanitizer INTERFACE)
if(STRATA_SANITIZE)
  target_compile_options(strata_sanitizer INTERFACE -fsanitize=${STRATA_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(strata_sanitizer INTERFACE -fsanitize=${STRATA_SANITIZE})
  target_compile_definitions(strata_sanitizer INTERFACE _GLIBCXX_ASSERTIONS)
endif()

add_library(strata_options INTERFACE)
target_compile_features(strata_options INTERFACE cxx_std_20)
target_compile_options(
  strata_options
  INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
            # g++ counts the members that a designated initializer leaves at their default.
            -Wno-missing-field-initializers
            # g++ 12 sees overlaps inside std::string that are not there (GCC bug 105329).
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
            # The result bits must not depend on the compiler's mood (docs/determinism.md).
            -ffp-contract=off -fno-math-errno -fno-trapping-math
            # The x86 floor is AVX2 + FMA, so that std::fma is one instruction.
            $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>:-mavx2> $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>:-mfma>
            $<$<BOOL:${STRATA_WARNINGS_AS_ERRORS}>:-Werror>)
target_include_directories(strata_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(strata_options INTERFACE strata_sanitizer)

# One room of the library (docs/architecture.md): an object library whose sources are listed.
function(strata_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;LINK" ${ARGN})
  add_library(strata_${name} OBJECT ${ROOM_SOURCES})
  set_target_properties(strata_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON
                        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(strata_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  target_link_libraries(strata_${name} PUBLIC fmt::fmt Threads::Threads strata_sanitizer ${ROOM_LINK}
                        PRIVATE strata_options)
endfunction()
