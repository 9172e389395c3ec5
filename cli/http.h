// A small HTTP/1.1 server of read-only pages: GET and HEAD, one request a connection. It has no
// authentication, no TLS, and bounds for the size, the time and the number of requests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/http_answer.h"

namespace starling::cli {

struct HttpServer {
  std::string host;        // an address in numbers
  std::uint16_t port = 0;  // 0: any free one
  // The page of a path, such as "/metrics"; nothing if there is none. Called in serve().
  std::function<std::optional<HttpPage>(const std::string& path)> page;
  std::function<void(std::uint16_t port)> ready;  // it listens

  // Until SIGINT or SIGTERM, whose number it returns. Throws Error if the port is not free.
  int serve() const;
};

}  // namespace starling::cli
