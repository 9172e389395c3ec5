// NVRTC, NVIDIA's compiler at run time. It comes with torch's wheel, and needs neither a CUDA toolkit nor a GPU. It is
// loaded when an Nvrtc is made: nothing of CUDA is needed to build Starling, or to run it on the CPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/kernels/cuda/program.h"

namespace starling::kernels::cuda {

struct NvrtcFunctions;  // what is called of it

struct Compiled {
  std::string cubin;  // an ELF file
  std::string ptx;    // what it was assembled from
};

class Nvrtc {
 public:
  // Loads the file, or without one the first that is there:
  //
  //   1. the file that STARLING_NVRTC names in the environment
  //   2. libnvrtc.so of CUDA 13, then of CUDA 12, where the loader finds them or the process has them already
  //   3. the one that came with the torch that this process has loaded: beside its libraries, or in its nvidia packages
  //
  // Throws Error where there is none, or where it is not NVRTC. It stays loaded until the process ends.
  explicit Nvrtc(const std::string& file = "");
  ~Nvrtc();
  // As above; none, where none was found. One that is there but of no use still throws.
  static std::optional<Nvrtc> find();
  Nvrtc(Nvrtc&&) noexcept;
  Nvrtc& operator=(Nvrtc&&) noexcept;

  std::string version() const;             // 13.0
  std::vector<int> architectures() const;  // 80 for sm_80; rising
  // Compiles, for GPUs of this architecture; takes seconds. Throws UsageError where NVRTC does not have it, and Error,
  // with the compiler's log in one line, where the program is refused. May be called from several threads.
  Compiled compile(const Program& program, int architecture) const;

 private:
  explicit Nvrtc(std::unique_ptr<NvrtcFunctions> functions);
  std::unique_ptr<NvrtcFunctions> functions_;
};

}  // namespace starling::kernels::cuda
