// Translation by a Transformer (models/transformer.h): beam search (Wu et al. 2016).
//
// Each step extends the `beams` best hypotheses of a sentence by every token, and keeps the `beams`
// best extensions. One that ends leaves the beam. A sentence is done when `beams` hypotheses have
// ended. The best of these has the largest
//
//   log P(Y | X) / ((5 + |Y|) / 6)^alpha       |Y|: tokens of Y, with its end
//
// One beam is greedy search: it takes the likeliest token in each step.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/models/transformer.h"

namespace starling {

struct SearchOptions {
  std::int64_t beams = 4;
  double alpha = 0.6;
  std::int64_t longer = 50;  // tokens that a translation may have beyond the length of its source
};

// The tokens of the best translation of each sentence, without its end. `source`: int64 [n, s],
// each sentence with its end. Disables gradients. The model must be in eval mode.
std::vector<std::vector<std::int64_t>> translate(Transformer& model, const at::Tensor& source,
                                                 const SearchOptions& options = {});

}  // namespace starling
