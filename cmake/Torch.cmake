# Targets of our own for torch's wheel (or a libtorch archive), since find_package(Torch) demands nvcc when the wheel
# was built with CUDA.
#
#   starling_fmt     fmt, from the headers that torch ships
#   starling_torch   libtorch for the CPU: headers, torch_cpu, c10, run-time path  (only with STARLING_TORCH)
#
# STARLING_TORCH_DIR is the folder that holds include/ and lib/; by default STARLING_PYTHON is asked for it, which is the
# python of .venv where there is one, else python3 on the PATH.

if(NOT STARLING_TORCH_DIR)
  foreach(python IN ITEMS ${STARLING_PYTHON} "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
    execute_process(
      COMMAND "${python}" -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed AND EXISTS "${found}/lib/libtorch_cpu.so")
      set(STARLING_TORCH_DIR "${found}" CACHE PATH "folder that holds torch's include/ and lib/")
      break()
    endif()
  endforeach()
endif()
if(NOT EXISTS "${STARLING_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "torch was not found in .venv nor in python3: run `make deps`, or pass -DSTARLING_TORCH_DIR=DIR "
                      "with the folder that holds torch's include/ and lib/")
endif()

# fmt alone, not the whole include folder of torch: the torch-free layers must not reach a torch header.
set(STARLING_FMT_INCLUDE "${PROJECT_BINARY_DIR}/fmt-include")
file(MAKE_DIRECTORY "${STARLING_FMT_INCLUDE}")
file(CREATE_LINK "${STARLING_TORCH_DIR}/include/fmt" "${STARLING_FMT_INCLUDE}/fmt" SYMBOLIC)
add_library(starling_fmt STATIC "${CMAKE_CURRENT_LIST_DIR}/fmt.cpp")
target_include_directories(starling_fmt SYSTEM PUBLIC "${STARLING_FMT_INCLUDE}")
target_link_libraries(starling_fmt PRIVATE starling_flags)

if(STARLING_TORCH)
  foreach(name IN ITEMS c10 torch_cpu)
    add_library(${name} SHARED IMPORTED)
    set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${STARLING_TORCH_DIR}/lib/lib${name}.so")
  endforeach()
  find_path(STARLING_GLOO_INCLUDE gloo/context.h REQUIRED)  # headers only: the code is inside torch_cpu
  add_library(starling_torch INTERFACE)
  target_include_directories(starling_torch SYSTEM INTERFACE
    "${STARLING_TORCH_DIR}/include" "${STARLING_TORCH_DIR}/include/torch/csrc/api/include" "${STARLING_GLOO_INCLUDE}")
  target_compile_definitions(starling_torch INTERFACE USE_C10D_GLOO USE_DISTRIBUTED)
  target_link_libraries(starling_torch INTERFACE torch_cpu c10)
  # torch_cpu itself needs libraries that lie beside it and in the nvidia wheels; it finds them by its own path.
  target_link_options(starling_torch INTERFACE -Wl,--allow-shlib-undefined)
  set(CMAKE_BUILD_RPATH "${STARLING_TORCH_DIR}/lib")
endif()
