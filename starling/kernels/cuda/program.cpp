#include "starling/kernels/cuda/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/kernels/cuda/segment.h"

namespace starling::kernels::cuda {

Program update_program() {
  constexpr std::string_view kSource = "starling/kernels/cuda/program.cuh";
  // One file replaces all standard headers.
  constexpr std::string_view kStandard = "#include \"starling/kernels/cuda/standard.cuh\"\n";
  Program program{
      .source = {},
      .headers = {{"algorithm", kStandard},
                  {"bit", kStandard},
                  {"cmath", kStandard},
                  {"cstddef", kStandard},
                  {"cstdint", kStandard},
                  {"cstdlib", kStandard}},
      // These options give the bits of the processor; see update.cuh. Functions need no device
      // attribute, and no include comes from the current folder of the process.
      .options = {"--std=c++20", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
                  "--device-as-default-execution-space", "--no-source-include",
                  fmt::format("-DSTARLING_TABLE_SIZES={}", fmt::join(kTableSizes, ","))}};
  for (const Text& text : embedded_texts()) {
    if (text.name == kSource) {
      program.source = text;
    } else {
      program.headers.push_back(text);
    }
  }
  return program;
}

}  // namespace starling::kernels::cuda
