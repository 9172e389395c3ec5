#include "starling/transport/c10d/cuda.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>

namespace starling {

std::string find_cuda() {
  // Asked before they are loaded, torch would say no from then on.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* const trouble = dlerror();
    return fmt::format("torch's libraries for CUDA cannot be loaded: {}",
                       trouble == nullptr ? "unknown" : trouble);
  }
  return at::detail::getCUDAHooks().hasCUDA() ? "" : "torch finds no CUDA device";
}

}  // namespace starling
