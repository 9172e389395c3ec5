# starling_fmt: fmt, from the headers that torch ships. It exposes fmt alone, not the whole include
# folder of torch, because the torch-free layers must not reach a torch header.
set(STARLING_FMT_INCLUDE "${PROJECT_BINARY_DIR}/fmt-include")
file(MAKE_DIRECTORY "${STARLING_FMT_INCLUDE}")
file(CREATE_LINK "${STARLING_TORCH_DIR}/include/fmt" "${STARLING_FMT_INCLUDE}/fmt" SYMBOLIC)
add_library(starling_fmt STATIC "${CMAKE_CURRENT_LIST_DIR}/fmt.cpp")
set_target_properties(starling_fmt PROPERTIES UNITY_BUILD OFF)  # ccache knows it in another copy
target_include_directories(starling_fmt SYSTEM PUBLIC "$<BUILD_INTERFACE:${STARLING_FMT_INCLUDE}>")
target_link_libraries(starling_fmt PRIVATE $<BUILD_INTERFACE:starling_flags>)
