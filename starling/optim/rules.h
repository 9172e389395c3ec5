// The local optimizers. A rule's options, as a user writes them:
//
//   starling::AccumAdamW{.lr = 1e-3, .window = 8}
//
// The formula of each stands in kernels/update.h.
#pragma once

#include <array>
#include <variant>

namespace starling {

// SGD: d = g + weight_decay x;  m <- momentum m + d;  u = nesterov ? d + momentum m : m  (m left out at momentum 0)
struct SGD {
  double lr = 0.1;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  bool operator==(const SGD&) const = default;
};

// Adam (Kingma & Ba 2015): weight decay is added to the gradient.
struct Adam {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool operator==(const Adam&) const = default;
};

// AdamW (Loshchilov & Hutter 2019): weight decay shrinks the parameter by lr * weight_decay on every step.
struct AdamW {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool operator==(const AdamW&) const = default;
};

// Accumulated Adam ("From Promise to Practice", arXiv 2410.11998): the moments that are kept move once per `window`
// steps, by the mean gradient of the window; each step uses them plus its own gradient. window = 1 is Adam.
struct AccumAdam {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  int window = 8;
  bool operator==(const AccumAdam&) const = default;
};

// Accumulated Adam with AdamW's weight decay.
struct AccumAdamW {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  int window = 8;
  bool operator==(const AccumAdamW&) const = default;
};

using Rule = std::variant<SGD, Adam, AdamW, AccumAdam, AccumAdamW>;

}  // namespace starling
