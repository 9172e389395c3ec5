#include "starling/world/token.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/random.h>

#include "starling/core/error.h"

namespace starling {

std::string random_token() {
  unsigned char bytes[32];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
    throw Error(fmt::format("getrandom: {}", std::strerror(errno)));
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

}  // namespace starling
