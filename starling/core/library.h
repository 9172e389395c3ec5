// Libraries that are loaded when they are first needed, so that nothing of them is needed to build Starling, or to run without
// them. They are never unloaded: they may have started threads.
#pragma once

#include <string>

#include <dlfcn.h>

#include "starling/core/error.h"

namespace starling {

// Why the last dlopen() of this thread failed.
inline std::string loader_trouble() {
  const char* const trouble = dlerror();
  return trouble == nullptr ? "unknown" : trouble;
}

// Sets a pointer to the function of this name. Throws Error, "{whose}: it has no {name}".
template <class Function>
void find_function(void* library, const char* name, Function*& function, const std::string& whose) {
  void* const address = dlsym(library, name);
  if (address == nullptr) throw Error(whose + ": it has no " + name);
  function = reinterpret_cast<Function*>(address);
}

}  // namespace starling
