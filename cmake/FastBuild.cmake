# Compile through ccache and link with mold where they are installed.
find_program(STARLING_CCACHE ccache)
if(STARLING_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${STARLING_CCACHE}")
endif()
find_program(STARLING_MOLD mold)
if(STARLING_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
