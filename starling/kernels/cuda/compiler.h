// Whether the update compiles for GPUs here: the one question of kernels/cuda/ that `starling
// doctor` asks. In a build without CUDA (STARLING_CUDA=OFF) no_cuda.cpp answers it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace starling::kernels::cuda {

struct Compiler {
  std::string version;             // 13.0
  std::vector<int> architectures;  // 80 for sm_80; rising
};

// Compiles the update for this architecture, as a Gpu would. The first time takes seconds; then the
// result is cached on disk. Returns nothing if there is no compiler, or if Starling was built
// without CUDA. Throws Error if the compiler refuses the update.
std::optional<Compiler> try_compiler(int architecture);

}  // namespace starling::kernels::cuda
