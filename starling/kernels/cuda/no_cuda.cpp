// In place of the other sources of this folder, in a build without CUDA.
#include "starling/kernels/cuda/compiler.h"

namespace starling::kernels::cuda {

std::optional<Compiler> try_compiler(int) { return std::nullopt; }

}  // namespace starling::kernels::cuda
