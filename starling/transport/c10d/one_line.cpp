#include "starling/transport/c10d/one_line.h"

#include <c10/util/Exception.h>

namespace starling {

std::string one_line(const std::exception& failure) {
  const auto* torchs = dynamic_cast<const c10::Error*>(&failure);
  std::string text = torchs ? torchs->what_without_backtrace() : failure.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with("[/")) {  // Gloo's "[/path/file.cc:123] "
    const std::size_t end = text.find("] ");
    if (end != std::string::npos) text.erase(0, end + 2);
  }
  return text;
}

}  // namespace starling
