# Compile through ccache and link with mold where they are installed.
find_program(STARLING_CCACHE ccache)
if(STARLING_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Sloppiness: ccache asks for it where headers are precompiled. Depend: what is new to it need not be preprocessed.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
                                  "${STARLING_CCACHE}")
endif()
find_program(STARLING_MOLD mold)
if(STARLING_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# A few sources are compiled as one: each would pay seconds for torch's headers. So names in unnamed namespaces must differ
# from those of the sources beside; -DCMAKE_UNITY_BUILD=OFF compiles each alone.
set(CMAKE_UNITY_BUILD ON CACHE BOOL "compile a few sources as one")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 6)

# One precompiled header serves the library `starling` and the programs on it: all as code for libraries.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE "${CMAKE_CXX_COMPILE_OPTIONS_PIC}")
