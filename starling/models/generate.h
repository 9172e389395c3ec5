// Text that a GPT-2 writes, token by token.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/models/gpt2.h"

namespace starling {

struct Sampling {
  double temperature = 1;  // divides the logits; 0: always the likeliest token
  std::int64_t top_k = 0;  // draw among so many of the likeliest tokens; 0: among all
  std::uint64_t seed = 1;
  std::int64_t end = -1;  // stop before this token; -1: there is none
};

// The tokens that follow those of the prompt, at least one; at most `count` of them. If the context
// is full, its later half is read again as the beginning of a new one. The model is in eval().
std::vector<std::int64_t> generate(Gpt2& model, std::vector<std::int64_t> prompt, std::int64_t count,
                                   const Sampling& sampling);

}  // namespace starling
