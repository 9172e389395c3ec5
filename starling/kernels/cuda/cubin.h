// A cache of compiled GPU programs on the disk: NVRTC takes seconds, and the same program gives the
// same cubin.
//
//   FOLDER/NAME-sm_90-KEY.cubin     KEY: a hash of the NVRTC version, the architecture, the options
//                                   and all texts
//
// A file holds the SHA-256 of its key and of its cubin, and is verified when it is read. It is
// complete or absent, even with several concurrent writers. If a file is damaged, or of another
// key, the program is compiled and written again.
#pragma once

#include <filesystem>
#include <string>

#include "starling/kernels/cuda/nvrtc.h"
#include "starling/kernels/cuda/program.h"

namespace starling::kernels::cuda {

// ${XDG_CACHE_HOME:-~/.cache}/starling/cuda; empty if neither variable is set.
std::filesystem::path cubin_folder();

struct Cubin {
  std::string bytes;           // an ELF file, as cuModuleLoadData takes it
  std::filesystem::path file;  // its place in the cache
  bool kept = false;           // it was in the cache: nothing was compiled
  // Why it could not be cached; empty if it was; the cubin is usable in either case.
  std::string trouble;
};

// The program for GPUs of this architecture: from the folder, otherwise compiled (seconds) and kept
// there. With an empty folder nothing is kept. Throws like Nvrtc::compile.
Cubin cubin_of(const Nvrtc& nvrtc, const Program& program, int architecture,
               const std::filesystem::path& folder = cubin_folder());

}  // namespace starling::kernels::cuda
