// Libraries that are loaded when they are first needed. Starling builds and runs without them. They
// are never unloaded, because they may have started threads.
#pragma once

#include <string>

#include <dlfcn.h>

#include "starling/core/error.h"

namespace starling {

// The reason why this thread's last dlopen() failed.
inline std::string loader_trouble() {
  const char* const trouble = dlerror();
  return trouble == nullptr ? "unknown" : trouble;
}

// Sets a pointer to the function with this name. Throws Error, "{whose}: it has no {name}".
template <class Function>
void find_function(void* library, const char* name, Function*& function, const std::string& whose) {
  void* const address = dlsym(library, name);
  if (address == nullptr) throw Error(whose + ": it has no " + name);
  function = reinterpret_cast<Function*>(address);
}

}  // namespace starling
