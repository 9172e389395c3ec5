# What `pip install` puts into Starling's wheel, by scikit-build-core (pyproject.toml): the extension, and the command with
# what starts it. The modules in python/starling/ it takes itself.
#
# The wheel runs where there are Python, torch and the system's C and C++ libraries. torch is not in it, and lies wherever
# the user's Python finds it: the extension is loaded after torch and needs no path; the program has that of a torch beside
# it, and python/command.py knows better.
if(NOT TARGET starling_python)
  message(FATAL_ERROR "The wheel needs Python's headers (Debian: python3-dev) and a torch with lib/libtorch_python.so")
endif()
set_target_properties(starling_python PROPERTIES INSTALL_RPATH "")
set_target_properties(starling-cli PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")

# What is linked statically stays our own: Python loads an OpenSSL too, and it may be another one. (mold 1.10 never ends on
# a list of both.)
foreach(target IN ITEMS starling_python starling-cli)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,libcrypto.a,--exclude-libs,libz.a)
endforeach()

install(TARGETS starling_python LIBRARY DESTINATION starling)
install(TARGETS starling-cli RUNTIME DESTINATION starling/bin)
install(FILES "${PROJECT_BINARY_DIR}/python/starling/_built_with.py"
              "${PROJECT_BINARY_DIR}/python/starling/_scheme_options.py" DESTINATION starling)
install(PROGRAMS "${PROJECT_SOURCE_DIR}/python/command.py" DESTINATION "${SKBUILD_SCRIPTS_DIR}" RENAME starling)
