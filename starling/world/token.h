// The secret by which the workers of a run authenticate to each other.
#pragma once

#include <string>

namespace starling {

// 32 random bytes from the operating system, in hexadecimal. Throws Error.
std::string random_token();

}  // namespace starling
