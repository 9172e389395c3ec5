// Compiled programs for the GPU, kept on the disk: NVRTC takes seconds, and the same program gives the same cubin.
//
//   FOLDER/NAME-sm_90-KEY.cubin     KEY: of the NVRTC version, the architecture, the options, and all texts
//
// A file holds the SHA-256 of its key and of its cubin, and is verified as it is read. It is there whole or not at all,
// whoever writes it at the same time. One that is damaged, or of another key, is compiled and written anew.
#pragma once

#include <filesystem>
#include <string>

#include "starling/kernels/cuda/nvrtc.h"
#include "starling/kernels/cuda/program.h"

namespace starling::kernels::cuda {

// ${XDG_CACHE_HOME:-~/.cache}/starling/cuda; empty where the environment has neither of the two.
std::filesystem::path cubin_folder();

struct Cubin {
  std::string bytes;           // an ELF file, as cuModuleLoadData takes it
  std::filesystem::path file;  // where it is kept
  bool kept = false;           // it was there before: nothing was compiled
  std::string trouble;         // why it could not be kept; empty where it was. It serves all the same
};

// The program for GPUs of this architecture: from the folder, else compiled (seconds) and kept there. The empty folder keeps
// nothing. Throws as Nvrtc::compile.
Cubin cubin_of(const Nvrtc& nvrtc, const Program& program, int architecture,
               const std::filesystem::path& folder = cubin_folder());

}  // namespace starling::kernels::cuda
