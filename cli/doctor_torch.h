// The properties of the loaded libtorch.
#pragma once

#include <string>

namespace starling::cli {

struct TorchFacts {
  std::string compiled;    // version of the headers that Starling was compiled with
  std::string loaded;      // version of the library that runs
  std::string capability;  // instruction set that its CPU kernels use: AVX512, AVX2, DEFAULT, ...
  std::string cuda;        // CUDA version of the build; empty for a CPU build
  bool gloo = false;
  bool nccl = false;
};
TorchFacts torch_facts();

}  // namespace starling::cli
