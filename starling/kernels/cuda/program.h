// Programs for the GPU in NVRTC's form: the texts of everything that they include, and the options.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starling/kernels/rules/all.h"

namespace starling::kernels::cuda {

// A text that is part of the build.
struct Text {
  std::string_view name;  // as in #include
  std::string_view text;
};

struct Program {
  Text source;
  std::vector<Text> headers;
  std::vector<std::string> options;  // for NVRTC, besides the architecture
};

// The update (update.cuh), gossip's part on a GPU (renew.cuh), and everything that they include.
Program update_program();

// Its entries: for each step, in the order of Step (kernels/update.h), then for renewals.
#define STARLING_STEP(entry, type) std::string_view(#entry),
inline constexpr std::array kUpdateEntries{STARLING_EACH_STEP(STARLING_STEP)
                                               std::string_view("starling_renew")};
#undef STARLING_STEP

// cmake/Embed.cmake writes it: the files that starling/kernels/CMakeLists.txt lists, by their
// paths.
std::span<const Text> embedded_texts();

}  // namespace starling::kernels::cuda
