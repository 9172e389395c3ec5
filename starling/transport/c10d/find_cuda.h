#pragma once

#include <string>

namespace starling {

// In a program that links torch's libraries for the CPU alone: loads those for CUDA that lie beside them. Call it before the
// first backward() of the process: after it torch takes no device that comes later. Returns why there is no CUDA here, in one
// line; empty where there is. (Where Python has imported torch it is there already.)
std::string find_cuda();

}  // namespace starling
