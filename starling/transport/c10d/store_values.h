// The values of workers in the store. Others may have written them.
#pragma once

#include <cstdint>
#include <string>

namespace starling {

// A worker of a process group, as it introduces itself (process_group.cpp).
struct Card {
  std::string host;
  bool has_token = false;  // given by the user
  std::string transport;
  std::string address;  // numeric, not a loopback one; empty: unknown

  std::string to_line() const;
  // `of`: the worker that should have written it. Throws Error, naming it.
  static Card from_line(const std::string& line, int of);
};

// The address at which a worker listens as long as its process lives (collectives.cpp).
struct LifeSign {
  std::uint16_t port = 0;
  std::string host;  // numeric

  std::string to_line() const;
  static LifeSign from_line(const std::string& line, int of);
};

}  // namespace starling
