// Errors. Every message is one line: what is wrong, where (file, line, key, rank, peer), what is
// allowed. Text that it quotes cannot break the line (core/text.h: printable).
#pragma once

#include <stdexcept>
#include <string>

namespace starling {

// Something failed while running (exit code 1 of the command).
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
};

// The caller asked for something impossible (exit code 2 of the command): a bad option, recipe,
// name or size.
class UsageError : public Error {
 public:
  using Error::Error;
};

}  // namespace starling
