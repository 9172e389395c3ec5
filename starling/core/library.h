// Libraries that are loaded when they are first needed. Starling builds and runs without them. They
// are never unloaded, because they may have started threads.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <dlfcn.h>
#include <link.h>

#include "starling/core/error.h"

namespace starling {

// The reason why this thread's last dlopen() failed.
inline std::string loader_trouble() {
  const char* const trouble = dlerror();
  return trouble == nullptr ? "unknown" : trouble;
}

// The folder of a library that this process has loaded, by its file's name; empty without one.
inline std::filesystem::path loaded_folder(std::string_view library) {
  std::pair<std::string_view, std::string> found{library, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* to) {
        auto& [name, path] = *static_cast<decltype(found)*>(to);
        if (std::filesystem::path(object->dlpi_name).filename() != name) return 0;
        path = object->dlpi_name;
        return 1;
      },
      &found);
  if (found.second.empty()) return {};
  std::error_code none;
  return std::filesystem::weakly_canonical(found.second, none).parent_path();
}

// A library that is loaded, from which the members of a derived class take functions.
class LoadedLibrary {
 public:
  LoadedLibrary(void* library, std::string whose) : library_(library), whose_(std::move(whose)) {}

 protected:
  // A pointer to a function of any type.
  struct Pointer {
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
    void* address;
  };
  // The function with this name. Throws Error, "{whose}: it has no {name}".
  Pointer find(const char* name) const {
    void* const address = dlsym(library_, name);
    if (address == nullptr) throw Error(whose_ + ": it has no " + name);
    return {address};
  }

 private:
  void* library_;
  std::string whose_;
};

}  // namespace starling
