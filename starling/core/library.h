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

// Sets a pointer to the function with this name. Throws Error, "{whose}: it has no {name}".
template <class Function>
void find_function(void* library, const char* name, Function*& function, const std::string& whose) {
  void* const address = dlsym(library, name);
  if (address == nullptr) throw Error(whose + ": it has no " + name);
  function = reinterpret_cast<Function*>(address);
}

}  // namespace starling
