#include "starling/transport/c10d/find_cuda.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "starling/core/library.h"

namespace starling {

std::string find_cuda() {
  // Asked before they are loaded, torch would say no from then on.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return fmt::format("torch's libraries for CUDA cannot be loaded: {}", loader_trouble());
  return at::detail::getCUDAHooks().hasCUDA() ? "" : "torch finds no CUDA device";
}

}  // namespace starling
