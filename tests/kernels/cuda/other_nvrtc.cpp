// A mock NVRTC: a library with its interface and a compiler that copies. Its version is the value
// of OTHER_NVRTC_MINOR, and it refuses texts that begin with "no". It tests the cache, and the
// effect of another version, on machines without NVRTC.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {
int compiled = 0;
struct Text {
  std::string source, result;
};
Text* text(void* program) { return static_cast<Text*>(program); }
constexpr char kLog[] = "a.cu(1): error: no such\n  thing\n  ^\n\n1 error detected.\n";
}  // namespace

extern "C" {
const char* nvrtcGetErrorString(int result) {
  return result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
int nvrtcVersion(int* major, int* minor) {
  const char* const minor_version = std::getenv("OTHER_NVRTC_MINOR");
  *major = 99, *minor = minor_version == nullptr ? 0 : std::atoi(minor_version);
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) { return *count = 2, 0; }
int nvrtcGetSupportedArchs(int* all) { return all[0] = 80, all[1] = 90, 0; }
int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Text{source, ""};
  return 0;
}
int nvrtcDestroyProgram(void** program) { return delete text(*program), 0; }
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  if (text(program)->source.starts_with("no")) return 6;
  text(program)->result = "compilation " + std::to_string(++compiled);
  for (int i = 0; i < count; ++i) text(program)->result += std::string(" ") + options[i];
  return 0;
}
int nvrtcGetProgramLogSize(void*, std::size_t* size) { return *size = sizeof kLog, 0; }
int nvrtcGetProgramLog(void*, char* log) { return std::memcpy(log, kLog, sizeof kLog), 0; }
int nvrtcGetCUBINSize(void* program, std::size_t* size) { return *size = text(program)->result.size(), 0; }
int nvrtcGetCUBIN(void* program, char* to) {
  return std::memcpy(to, text(program)->result.data(), text(program)->result.size()), 0;
}
int nvrtcGetPTXSize(void*, std::size_t* size) { return *size = 0, 0; }
int nvrtcGetPTX(void*, char*) { return 0; }
}
