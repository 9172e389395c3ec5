#include "starling/kernels/cuda/compiler.h"

#include "starling/kernels/cuda/cubin.h"
#include "starling/kernels/cuda/nvrtc.h"

namespace starling::kernels::cuda {

std::optional<Compiler> try_compiler(int architecture) {
  const std::optional<Nvrtc> nvrtc = Nvrtc::find();
  if (!nvrtc) return std::nullopt;
  cubin_of(*nvrtc, update_program(), architecture);
  return Compiler{nvrtc->version(), nvrtc->architectures()};
}

}  // namespace starling::kernels::cuda
