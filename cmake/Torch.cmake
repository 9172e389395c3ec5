# Finds libtorch, in torch's wheel or in an unpacked libtorch archive, and makes a target of our own
# for it. (find_package(Torch) requires nvcc if torch was built with CUDA.) Starling's own build
# uses this file, and so does find_package(Starling) in other projects.
#
#   Starling::torch           libtorch for the CPU: headers, torch_cpu, c10
#   STARLING_TORCH_DIR        the folder that holds torch's lib/, include/ and share/
#   STARLING_TORCH_VERSION    such as 2.11.0
#   STARLING_TORCH_NOT_FOUND  the reason why there is no Starling::torch, in one line; otherwise
#                             unset
#
# If STARLING_TORCH_DIR is not set, torch is searched in CMAKE_PREFIX_PATH, then in the Python that
# STARLING_PYTHON names. If that is not set either, it is searched in the project's .venv, then in
# python3 on the PATH.

unset(STARLING_TORCH_NOT_FOUND)
set(STARLING_TORCH_DIR "" CACHE PATH "the folder that holds torch's lib/, include/ and share/")
set(STARLING_PYTHON "" CACHE FILEPATH "a python that has torch; empty: that of .venv, else python3")
if(NOT STARLING_TORCH_DIR)
  find_library(found torch_cpu NO_CACHE NO_SYSTEM_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH)
  if(found)
    cmake_path(GET found PARENT_PATH found)  # lib/
    cmake_path(GET found PARENT_PATH found)
  else()
    set(pythons "${STARLING_PYTHON}")
    if(NOT pythons)
      set(pythons "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
    endif()
    foreach(python IN LISTS pythons)
      # torch may lie in PYTHONPATH. pip's own environment, there, hides the one that is installed.
      foreach(change "" --unset=PYTHONPATH)
        if(NOT found)
          execute_process(
            COMMAND "${CMAKE_COMMAND}" -E env ${change} "${python}" -c
                    "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
            OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        endif()
      endforeach()
    endforeach()
  endif()
  if(found)
    set(STARLING_TORCH_DIR "${found}" CACHE PATH "" FORCE)
  endif()
  unset(found)
  unset(pythons)
endif()

set(torch_version_file "${STARLING_TORCH_DIR}/share/cmake/Torch/TorchConfigVersion.cmake")
if(NOT STARLING_TORCH_DIR)
  set(STARLING_TORCH_NOT_FOUND "torch was not found: pass -DSTARLING_TORCH_DIR=DIR with the folder that holds its lib/, \
include/ and share/, or -DSTARLING_PYTHON=PYTHON with a python that has it")
elseif(NOT EXISTS "${STARLING_TORCH_DIR}/lib/libtorch_cpu.so" OR NOT EXISTS "${torch_version_file}")
  set(STARLING_TORCH_NOT_FOUND "STARLING_TORCH_DIR=${STARLING_TORCH_DIR} is not torch's folder: it must hold \
lib/libtorch_cpu.so and share/cmake/Torch/TorchConfigVersion.cmake")
else()
  file(STRINGS "${torch_version_file}" STARLING_TORCH_VERSION REGEX "set\\(PACKAGE_VERSION ")
  string(REGEX REPLACE ".*\"(.*)\".*" "\\1" STARLING_TORCH_VERSION "${STARLING_TORCH_VERSION}")
endif()
unset(torch_version_file)

if(NOT STARLING_TORCH_NOT_FOUND AND NOT TARGET Starling::torch)
  add_library(Starling::torch INTERFACE IMPORTED)
  target_include_directories(Starling::torch SYSTEM INTERFACE
    "${STARLING_TORCH_DIR}/include" "${STARLING_TORCH_DIR}/include/torch/csrc/api/include")
  # As torch itself was compiled.
  target_compile_definitions(Starling::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_compile_features(Starling::torch INTERFACE cxx_std_20)
  # By their paths: find_package(Torch) has targets named c10 and torch_cpu, and some projects use
  # it too.
  target_link_libraries(Starling::torch INTERFACE
    "${STARLING_TORCH_DIR}/lib/libtorch_cpu.so" "${STARLING_TORCH_DIR}/lib/libc10.so")
  # torch_cpu itself needs libraries beside it and in the nvidia wheels. It finds them by its own
  # path.
  target_link_options(Starling::torch INTERFACE -Wl,--allow-shlib-undefined)
endif()
