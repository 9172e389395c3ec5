# `cmake --install`: the libraries, the public headers, the command, and the files for
# find_package(Starling).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/Starling")
install(TARGETS starling starling_core starling_fmt EXPORT StarlingTargets FILE_SET HEADERS FILE_SET generated)
install(TARGETS starling-cli)
install(FILES "${STARLING_GENERATED}/starling/optim/schemes.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/starling/optim")
install(EXPORT StarlingTargets NAMESPACE Starling:: DESTINATION "${package}")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/StarlingConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/package/StarlingConfig.cmake" INSTALL_DESTINATION "${package}"
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/StarlingConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/package/StarlingConfig.cmake"
  "${PROJECT_BINARY_DIR}/package/StarlingConfigVersion.cmake" "${CMAKE_CURRENT_LIST_DIR}/Torch.cmake"
  DESTINATION "${package}")
