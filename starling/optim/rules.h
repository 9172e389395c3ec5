// The local optimizers. A user writes a rule as its options:
//
//   starling::AccumAdamW{.lr = 1e-3, .window = 8}
//
// Each stands in a file of its own in kernels/rules/, with its paper and formula. The variant Rule holds any.
#pragma once

#include "starling/kernels/rules/all.h"
