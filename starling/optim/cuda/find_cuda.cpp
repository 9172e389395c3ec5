#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "starling/core/library.h"
#include "starling/optim/cuda/cuda.h"

namespace starling {

std::string find_cuda() {
  // Load first: torch would answer no from then on if it were asked before.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return fmt::format("torch's libraries for CUDA cannot be loaded: {}", loader_trouble());
  return at::detail::getCUDAHooks().hasCUDA() ? "" : "torch finds no CUDA device";
}

}  // namespace starling
