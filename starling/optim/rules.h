// The local optimizers. A user writes a rule as its options:
//
//   starling::AccumAdamW{.lr = 1e-3, .window = 8}
//
// Each rule is one file in kernels/rules/, with its paper and formula. The variant Rule holds any
// rule.
#pragma once

#include "starling/kernels/rules/all.h"
