# The content of Starling's wheel, which scikit-build-core builds for `pip install`
# (pyproject.toml): the extension, the command and its starter. scikit-build-core adds the modules
# in python/starling/ itself.
#
# The wheel runs with Python, torch and the system's C and C++ libraries. It does not contain torch,
# whose place depends on the user's Python. The extension is loaded after torch and needs no path.
# The program has the path of a torch beside it, and python/command.py finds others.
if(NOT TARGET starling_python)
  message(FATAL_ERROR "The wheel needs Python's headers (Debian: python3-dev) and a torch with lib/libtorch_python.so")
endif()
set_target_properties(starling_python PROPERTIES INSTALL_RPATH "")
set_target_properties(starling-cli PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")

# Statically linked libraries stay private: Python loads an OpenSSL too, and torchvision and Pillow
# load a libjpeg, possibly another one. (mold 1.10 never ends on a list of them.)
foreach(target IN ITEMS starling_python starling-cli)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,libssl.a,--exclude-libs,libcrypto.a,--exclude-libs,libz.a,--exclude-libs,libjpeg.a)
endforeach()

install(TARGETS starling_python LIBRARY DESTINATION starling)
install(TARGETS starling-cli RUNTIME DESTINATION starling/bin)
install(FILES "${PROJECT_BINARY_DIR}/python/starling/_built_with.py"
              "${PROJECT_BINARY_DIR}/python/starling/_scheme_options.py" DESTINATION starling)
install(PROGRAMS "${PROJECT_SOURCE_DIR}/python/command.py" DESTINATION "${SKBUILD_SCRIPTS_DIR}" RENAME starling)
