#include "starling/kernels/cuda/cubin.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include "starling/core/error.h"

namespace starling::kernels::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "starling cubin 1";

// SHA-256 in hexadecimal digits.
std::string digest_of(std::string_view text) {
  std::array<unsigned char, 32> digest{};
  if (EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1)
    throw Error("OpenSSL has no SHA-256");
  std::string digits;
  for (const unsigned char byte : digest) digits += fmt::format("{:02x}", byte);
  return digits;
}

// The hash of everything that the cubin depends on.
std::string key_of(const Nvrtc& nvrtc, const Program& program, int architecture) {
  std::string all;
  const auto add = [&](std::string_view part) { all += fmt::format("{}:{}\n", part.size(), part); };
  add(nvrtc.version());
  add(fmt::format("sm_{}", architecture));
  for (const std::string& option : program.options) add(option);
  add("");  // no option is empty
  add(program.source.name), add(program.source.text);
  for (const Text& header : program.headers) add(header.name), add(header.text);
  return digest_of(all);
}

std::string first_line(std::string_view key, std::string_view bytes) {
  return fmt::format("{} {} {}\n", kMagic, key, digest_of(bytes));
}

// The cubin in a file. Nothing if there is no file, or if it is not the complete cubin of this key.
std::optional<std::string> read(const fs::path& path, std::string_view key) {
  std::ifstream file(path, std::ios::binary);
  std::string line, bytes;
  if (!std::getline(file, line)) return std::nullopt;
  bytes.assign(std::istreambuf_iterator<char>(file), {});
  if (file.bad() || line + "\n" != first_line(key, bytes)) return std::nullopt;
  return bytes;
}

// Writes a file with another name beside it, then renames it. Returns the error, or nothing.
std::string write(const fs::path& path, std::string_view key, std::string_view bytes) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return fmt::format("{} cannot be made: {}", path.parent_path().string(), error.message());
  std::string draft = path.string() + ".XXXXXX";
  const int descriptor = mkstemp(draft.data());
  if (descriptor < 0)
    return fmt::format("{} cannot be written: {}", path.string(),
                       std::error_code(errno, std::generic_category()).message());
  close(descriptor);
  std::ofstream file(draft, std::ios::binary);
  file << first_line(key, bytes) << bytes;
  file.close();
  if (file) fs::rename(draft, path, error);
  if (file && !error) return "";
  std::error_code ignored;
  fs::remove(draft, ignored);
  return fmt::format("{} cannot be written{}", path.string(), error ? ": " + error.message() : "");
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

fs::path cubin_folder() {
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "starling/cuda";
  if (const std::string home = variable("HOME"); !home.empty())
    return fs::path(home) / ".cache/starling/cuda";
  return {};
}

Cubin cubin_of(const Nvrtc& nvrtc, const Program& program, int architecture, const fs::path& folder) {
  Cubin cubin;
  if (folder.empty()) {
    cubin.bytes = nvrtc.compile(program, architecture).cubin;
    cubin.trouble = "no folder: neither XDG_CACHE_HOME nor HOME is set";
    return cubin;
  }
  const std::string key = key_of(nvrtc, program, architecture);
  cubin.file = folder / fmt::format("{}-sm_{}-{}.cubin", fs::path(program.source.name).stem().string(),
                                    architecture, key.substr(0, 16));
  if (std::optional<std::string> bytes = read(cubin.file, key)) {
    cubin.bytes = std::move(*bytes);
    cubin.kept = true;
    return cubin;
  }
  cubin.bytes = nvrtc.compile(program, architecture).cubin;
  cubin.trouble = write(cubin.file, key, cubin.bytes);
  return cubin;
}

}  // namespace starling::kernels::cuda
