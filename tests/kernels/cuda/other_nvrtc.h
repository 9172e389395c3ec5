// The libraries of other_nvrtc.cpp and other_driver.cpp, beside the test.
#pragma once

#include <filesystem>
#include <string>

namespace starling::kernels::cuda {

inline std::string beside_the_test(const char* file) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / file;
}
inline std::string other_nvrtc() { return beside_the_test("other_nvrtc.so"); }
inline std::string other_driver() { return beside_the_test("other_driver.so"); }

}  // namespace starling::kernels::cuda
