#include "starling/kernels/cuda/nvrtc.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/library.h"

namespace starling::kernels::cuda {

// NVRTC's C interface, as nvrtc.h of CUDA 12 and 13 declares it: nvrtcResult is an int,
// nvrtcProgram a pointer.
struct NvrtcFunctions : LoadedLibrary {
  using LoadedLibrary::LoadedLibrary;
  const char* (*nvrtcGetErrorString)(int) = find("nvrtcGetErrorString");
  int (*nvrtcVersion)(int*, int*) = find("nvrtcVersion");
  int (*nvrtcGetNumSupportedArchs)(int*) = find("nvrtcGetNumSupportedArchs");
  int (*nvrtcGetSupportedArchs)(int*) = find("nvrtcGetSupportedArchs");
  int (*nvrtcCreateProgram)(void**, const char*, const char*, int, const char* const*,
                            const char* const*) = find("nvrtcCreateProgram");
  int (*nvrtcDestroyProgram)(void**) = find("nvrtcDestroyProgram");
  int (*nvrtcCompileProgram)(void*, int, const char* const*) = find("nvrtcCompileProgram");
  int (*nvrtcGetProgramLogSize)(void*, std::size_t*) = find("nvrtcGetProgramLogSize");
  int (*nvrtcGetProgramLog)(void*, char*) = find("nvrtcGetProgramLog");
  int (*nvrtcGetCUBINSize)(void*, std::size_t*) = find("nvrtcGetCUBINSize");
  int (*nvrtcGetCUBIN)(void*, char*) = find("nvrtcGetCUBIN");
  int (*nvrtcGetPTXSize)(void*, std::size_t*) = find("nvrtcGetPTXSize");
  int (*nvrtcGetPTX)(void*, char*) = find("nvrtcGetPTX");

  void must(int result, const char* what) const {
    if (result != 0) throw Error(fmt::format("NVRTC: {}: {}", what, nvrtcGetErrorString(result)));
  }
};

namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "STARLING_NVRTC";

// All functions of a loaded library.
std::unique_ptr<NvrtcFunctions> functions_of(void* library, const std::string& file) {
  return std::make_unique<NvrtcFunctions>(library, fmt::format("{} is not an NVRTC of CUDA 12 or 13", file));
}

std::unique_ptr<NvrtcFunctions> load(const std::string& file, std::string_view named_by) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error(
        fmt::format("NVRTC cannot be loaded from the file that {} names: {}", named_by, loader_trouble()));
  return functions_of(library, file);
}

// The NVRTC libraries in a folder, by file name. libtorch's archive names it libnvrtc-HASH.so.13.
// Its builtins are another library, and `alt` is another build of the same compiler.
std::vector<fs::path> nvrtcs_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("libnvrtc") && name.find(".so.") != std::string::npos &&
        name.find("builtins") == std::string::npos && name.find(".alt.") == std::string::npos)
      found.push_back(entry.path());
  }
  std::sort(found.rbegin(), found.rend());  // the newest first
  return found;
}

std::vector<fs::path> beside_torch(const fs::path& torch) {
  if (torch.empty()) return {};
  std::vector<fs::path> found = nvrtcs_in(torch);
  std::error_code none;
  for (const fs::directory_entry& package : fs::directory_iterator(torch / "../../nvidia", none)) {
    for (fs::path& file : nvrtcs_in(package.path() / "lib")) found.push_back(std::move(file));
  }
  return found;
}

std::unique_ptr<NvrtcFunctions> search() {
  if (const char* const named = std::getenv(kVariable); named != nullptr && *named != '\0')
    return load(named, kVariable);
  std::vector<std::string> files{"libnvrtc.so.13", "libnvrtc.so.12"};
  for (const fs::path& file : beside_torch(loaded_folder("libc10.so"))) files.push_back(file);
  for (const std::string& file : files) {
    if (void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return functions_of(library, file);
  }
  return nullptr;
}

// The compiler's log in one line.
std::string in_one_line(std::string_view log) {
  std::string line;
  for (std::size_t at = 0; at < log.size();) {
    const std::size_t end = std::min(log.find('\n', at), log.size());
    std::string_view part = log.substr(at, end - at);
    at = end + 1;
    part.remove_prefix(std::min(part.find_first_not_of(" \t"), part.size()));
    part = part.substr(0, part.find_last_not_of(" \t\r") + 1);
    if (part.empty() || part == "^") continue;  // points into the line above
    line += (line.empty() ? "" : " | ") + std::string(part);
  }
  return line;
}

// nvrtcProgram, destroyed with it.
struct Handle {
  const NvrtcFunctions& nvrtc;
  void* program = nullptr;

  explicit Handle(const NvrtcFunctions& nvrtc) : nvrtc(nvrtc) {}
  ~Handle() {
    if (program != nullptr) nvrtc.nvrtcDestroyProgram(&program);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  std::string text(int (*size_of)(void*, std::size_t*), int (*get)(void*, char*), const char* what) const {
    std::size_t size = 0;
    nvrtc.must(size_of(program, &size), what);
    std::string text(size, '\0');
    if (size > 0) nvrtc.must(get(program, text.data()), what);
    return text;
  }
};

}  // namespace

Nvrtc::Nvrtc(const std::string& file) : functions_(file.empty() ? search() : load(file, "the caller")) {
  if (functions_ == nullptr) {
    const fs::path torch = loaded_folder("libc10.so");
    throw Error(
        fmt::format("NVRTC was not found: neither libnvrtc.so.13 nor .12 by the loader, {}; install torch's "
                    "package nvidia-cuda-nvrtc, or name the file by {}",
                    torch.empty() ? "and no torch is loaded" : "nor beside " + torch.string(), kVariable));
  }
}
Nvrtc::Nvrtc(std::unique_ptr<NvrtcFunctions> functions) : functions_(std::move(functions)) {}
Nvrtc::~Nvrtc() = default;
Nvrtc::Nvrtc(Nvrtc&&) noexcept = default;
Nvrtc& Nvrtc::operator=(Nvrtc&&) noexcept = default;

std::optional<Nvrtc> Nvrtc::find() {
  std::unique_ptr<NvrtcFunctions> functions = search();
  if (functions == nullptr) return std::nullopt;
  return Nvrtc(std::move(functions));
}

std::string Nvrtc::version() const {
  int major = 0, minor = 0;
  functions_->must(functions_->nvrtcVersion(&major, &minor), "version");
  return fmt::format("{}.{}", major, minor);
}

std::vector<int> Nvrtc::architectures() const {
  int count = 0;
  functions_->must(functions_->nvrtcGetNumSupportedArchs(&count), "architectures");
  std::vector<int> all(static_cast<std::size_t>(std::max(count, 0)));
  functions_->must(functions_->nvrtcGetSupportedArchs(all.data()), "architectures");
  return all;
}

Compiled Nvrtc::compile(const Program& program, int architecture) const {
  const std::vector<int> all = architectures();
  if (std::find(all.begin(), all.end(), architecture) == all.end())
    throw UsageError(fmt::format("NVRTC {} has no architecture sm_{}: allowed are sm_{}", version(),
                                 architecture, fmt::join(all, ", sm_")));
  const std::string source(program.source.text), name(program.source.name);
  std::vector<std::string> texts;  // with a zero at their end
  for (const Text& header : program.headers)
    texts.insert(texts.end(), {std::string(header.text), std::string(header.name)});
  std::vector<const char*> contents, names, options;
  for (std::size_t i = 0; i < texts.size(); i += 2) {
    contents.push_back(texts[i].c_str());
    names.push_back(texts[i + 1].c_str());
  }
  const std::string target = fmt::format("--gpu-architecture=sm_{}", architecture);
  options.push_back(target.c_str());
  for (const std::string& option : program.options) options.push_back(option.c_str());

  const NvrtcFunctions& nvrtc = *functions_;
  Handle handle(nvrtc);
  nvrtc.must(nvrtc.nvrtcCreateProgram(&handle.program, source.c_str(), name.c_str(),
                                      static_cast<int>(names.size()), contents.data(), names.data()),
             "creating a program");
  const int result =
      nvrtc.nvrtcCompileProgram(handle.program, static_cast<int>(options.size()), options.data());
  if (result != 0) {
    std::string log = handle.text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, "reading the log");
    log.erase(std::find(log.begin(), log.end(), '\0'), log.end());
    throw Error(fmt::format("NVRTC {} cannot compile {} for sm_{}: {}: {}", version(), name, architecture,
                            nvrtc.nvrtcGetErrorString(result), in_one_line(log)));
  }
  return {.cubin = handle.text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, "reading the cubin"),
          .ptx = handle.text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, "reading the PTX")};
}

}  // namespace starling::kernels::cuda
