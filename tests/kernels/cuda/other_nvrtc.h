// Where other_nvrtc.cpp lies as a library: beside the test.
#pragma once

#include <filesystem>
#include <string>

namespace starling::kernels::cuda {

inline std::string other_nvrtc() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "other_nvrtc.so";
}

}  // namespace starling::kernels::cuda
