// starling schemes --for: what the chooser suggests, as text or JSON.
#pragma once

#include "starling/train/choose_scheme.h"

namespace starling::cli {

void print_suggestions(const Situation& situation, bool json);

}  // namespace starling::cli
