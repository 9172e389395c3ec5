// A libFuzzer target for one reader. Bytes are accepted, or refused by an Error of one line; anything
// else, and what the sanitizers find, is a fault. scripts/fuzz builds and runs the targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling::fuzz {

// Each target defines it.
void read(std::string_view bytes);

inline void check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

// Whether f() throws no Error.
template <class F>
bool accepted(const F& f) {
  try {
    f();
    return true;
  } catch (const Error& error) {
    const std::string_view said = error.what();
    check(said == printable(said), "not one line: " + std::string(said));
    check(said.size() < 15'000, "a long message: " + std::string(said));
    return false;
  }
}

// A file with these bytes, for readers that take a path.
class TemporaryFile {
 public:
  TemporaryFile(std::string_view bytes, const std::string& end)
      : path_(std::filesystem::temp_directory_path() / ("starling-fuzz-" + std::to_string(getpid()) + end)) {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

}  // namespace starling::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  starling::fuzz::read({reinterpret_cast<const char*>(data), size});
  return 0;
}
