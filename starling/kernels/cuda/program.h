// Programs for the GPU as NVRTC takes them: the text of everything that they include, and the options.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::kernels::cuda {

// Texts that were part of the build.
struct Text {
  std::string_view name;  // as in an #include
  std::string_view text;
};

struct Program {
  Text source;
  std::vector<Text> headers;
  std::vector<std::string> options;  // NVRTC's, besides the architecture
};

// The update (update.cuh), what gossip does on a GPU (renew.cuh), and what they include.
Program update_program();

// Its entries, of the rules in the order of Step (kernels/update.h), and of renewals.
inline constexpr std::array<std::string_view, 6> kUpdateEntries{"starling_sgd",
                                                                "starling_momentum",
                                                                "starling_adam",
                                                                "starling_accum_adam",
                                                                "starling_accum_adam_window_end",
                                                                "starling_renew"};

// Written by cmake/Embed.cmake: the files that starling/kernels/CMakeLists.txt names, by their paths in the project.
std::span<const Text> embedded_texts();

}  // namespace starling::kernels::cuda
