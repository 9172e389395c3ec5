// The secret that the workers of a run prove to each other.
#pragma once

#include <string>

namespace starling {

// 32 random bytes of the operating system's, in hexadecimal. Throws Error.
std::string random_token();

}  // namespace starling
