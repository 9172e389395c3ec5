# Compile through ccache and link with mold if they are installed.
find_program(STARLING_CCACHE ccache)
if(STARLING_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Sloppiness: ccache requires it for precompiled headers. Depend: new files need not be
  # preprocessed. Basedir: results from one copy of the sources are valid for another, such as that
  # of an sdist.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
                                  "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${STARLING_CCACHE}")
endif()
find_program(STARLING_MOLD mold)
if(STARLING_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# A few sources are compiled as one, because each would pay seconds for torch's headers. Names in
# unnamed namespaces must therefore differ from those of neighbouring sources;
# -DCMAKE_UNITY_BUILD=OFF compiles each alone.
set(CMAKE_UNITY_BUILD ON CACHE BOOL "compile a few sources as one")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 6)
# The same for a target that other copies of the sources build too: an sdist, a worktree. CMake
# names the sources by their full paths, so ccache would miss them there. Sources with options of
# their own, and generated ones, stay alone. Sources of two layers are never one: the linker takes
# whole objects, so an object of two layers would bring the Python extension layers that it does not
# use, and Debian's libjpeg.a with them, which suits programs only (it is not position-independent).
function(starling_compile_together target)
  if(NOT CMAKE_UNITY_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  set(number -1)
  set(last_layer "")
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${folder}" NORMALIZE)
    get_source_file_property(own "${source}" TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
    get_source_file_property(generated "${source}" TARGET_DIRECTORY ${target} GENERATED)
    get_source_file_property(alone "${source}" TARGET_DIRECTORY ${target} SKIP_UNITY_BUILD_INCLUSION)
    if(own OR generated OR alone)
      continue()
    endif()
    set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES HEADER_FILE_ONLY ON)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    string(REGEX MATCH "^(starling/)?[^/]+" layer "${source}")
    if(NOT layer STREQUAL last_layer OR count EQUAL CMAKE_UNITY_BUILD_BATCH_SIZE)
      math(EXPR number "${number} + 1")
      set(count 0)
    endif()
    set(last_layer "${layer}")
    math(EXPR count "${count} + 1")
    string(APPEND batch_${number} "#include \"${source}\"\n")
  endforeach()
  foreach(n RANGE ${number})
    set(together "${PROJECT_BINARY_DIR}/together/${target}_${n}.cpp")
    file(CONFIGURE OUTPUT "${together}" CONTENT "${batch_${n}}" @ONLY)
    target_sources(${target} PRIVATE "${together}")
  endforeach()
endfunction()

# One precompiled header serves the library `starling` and its programs, so all are compiled as code
# for libraries.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE "${CMAKE_CXX_COMPILE_OPTIONS_PIC}")
