// The secret by which the workers of a run authenticate to each other.
#pragma once

#include <cstddef>
#include <string>

namespace starling {

// Bytes: a shorter token can be guessed from a proof.
inline constexpr std::size_t kLeastToken = 16;

// 32 random bytes from the operating system, in hexadecimal. Throws Error.
std::string random_token();

}  // namespace starling
