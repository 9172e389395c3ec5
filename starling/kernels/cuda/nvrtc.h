// NVRTC, NVIDIA's compiler at run time. It comes with torch's wheel, and needs neither a CUDA
// toolkit nor a GPU. It is loaded when an Nvrtc is made. Starling needs no part of CUDA to build,
// or to run on the CPU.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/kernels/cuda/program.h"

namespace starling::kernels::cuda {

struct NvrtcFunctions;  // the NVRTC functions in use

struct Compiled {
  std::string cubin;  // an ELF file
  std::string ptx;    // the source of the cubin
};

class Nvrtc {
 public:
  // Loads the file or, without a name, the first of these that exists:
  //
  //   1. the file that STARLING_NVRTC names in the environment
  //   2. libnvrtc.so of CUDA 13, then of CUDA 12, if the loader finds them or the process has them
  //      already
  //   3. the one that came with the torch that this process has loaded: beside its libraries, or in
  //      its nvidia packages
  //
  // Throws Error if there is none, or if it is not NVRTC. It stays loaded until the process ends.
  explicit Nvrtc(const std::string& file = "");
  ~Nvrtc();
  // Like the constructor, but returns nothing if there is no NVRTC. Still throws if one exists but
  // is unusable.
  static std::optional<Nvrtc> find();
  Nvrtc(Nvrtc&&) noexcept;
  Nvrtc& operator=(Nvrtc&&) noexcept;

  std::string version() const;             // 13.0
  std::vector<int> architectures() const;  // 80 for sm_80; rising
  // Compiles for GPUs of this architecture; takes seconds. Throws UsageError if NVRTC does not
  // support it, and Error, with the compiler's log in one line, if the program is refused. May be
  // called from several threads.
  Compiled compile(const Program& program, int architecture) const;

 private:
  explicit Nvrtc(std::unique_ptr<NvrtcFunctions> functions);
  std::unique_ptr<NvrtcFunctions> functions_;
};

}  // namespace starling::kernels::cuda
