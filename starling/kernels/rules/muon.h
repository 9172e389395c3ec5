// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), as torch.optim.Muon computes it.
// The momentum of a matrix is made orthogonal:
//
//   m <- mu m + (1 - mu) g
//   n = m            or, with Nesterov's momentum,  n = mu m + (1 - mu) g
//   O = NS(n)        Newton-Schulz: about U V^T of n = U S V^T (optim/direction.h)
//   x <- (1 - lr * weight decay) Wx - lr r O
//
//   r = sqrt(max(1, rows / columns))      original: Jordan's
//     = 0.2 sqrt(max(rows, columns))      match_rms_adamw: steps as long as AdamW's (Liu et al.
//                                         2025, arXiv 2502.16982)
//     = sqrt(rows / columns)              spectral_unclamped (Bernstein 2025, Deriving Muon)
//
// Wx the mixed parameter   g gradient at x   m momentum (state)   mu its factor   lr learning rate
//
// A matrix is a parameter of two or more dimensions: the first one is the rows, the others are the
// columns. All other parameters take AdamW's step (adamw.h) with the learning rate adamw_scale *
// lr. So do those of a group with use_muon = false, as embeddings should.
#pragma once

#include <cmath>
#include <cstdint>

#include "starling/kernels/rules/adamw.h"

namespace starling::kernels {

// The step of a matrix along a direction that is known.
struct MuonStep {
  static constexpr int kStates = 0;
  float lr_r, keep;

  float operator()(float /*x*/, float Wx, float O) const { return keep * Wx - lr_r * O; }
};

}  // namespace starling::kernels

#define STARLING_STEPS_muon(f) f(starling_muon, MuonStep)

#ifndef __CUDACC_RTC__
#define STARLING_RULE_muon Muon

namespace starling {

struct Muon {
  enum AdjustLr : int { original, match_rms_adamw, spectral_unclamped };

  double lr = 1e-3;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  int ns_steps = 5;
  double eps = 1e-7;
  AdjustLr adjust_lr_fn = original;
  bool use_muon = true;  // false: AdamW for all parameters of the group
  double adamw_scale = 1;
  std::array<double, 2> betas{0.9, 0.999};
  double adamw_eps = 1e-8;
  bool operator==(const Muon&) const = default;
};

template <>
struct RuleInfo<Muon> {
  static constexpr std::string_view kName = "Muon", kKey = "muon";
  static constexpr std::array kStates{RuleStateName{"m", "momentum_buffer"},
                                      RuleStateName{"v", "exp_avg_sq"}};
  static constexpr bool kDecoupled = true;
  static constexpr std::array<std::string_view, 3> kAdjustLr{"original", "match_rms_adamw",
                                                             "spectral_unclamped"};

  template <class O, class F>
  static void each_option(O& o, const F& f) {
    f(RuleOption{.name = "momentum",
                 .range = from_below(0, 1),
                 .help = "share of a matrix's momentum that a step keeps",
                 .key = "muon_momentum"},
      o.momentum);
    f(
        RuleOption{
            .name = "nesterov", .help = "Nesterov's form of a matrix's momentum", .key = "muon_nesterov"},
        o.nesterov);
    f(RuleOption{"weight_decay", at_least(0), "decoupled: subtracts lr * weight_decay * x from x"},
      o.weight_decay);
    f(RuleOption{"ns_steps", between(1, 99), "steps of Newton-Schulz, which makes a matrix orthogonal"},
      o.ns_steps);
    f(
        RuleOption{
            .name = "eps", .range = above(0), .help = "least norm of a matrix's momentum", .key = "muon_eps"},
        o.eps);
    f(RuleOption{.name = "adjust_lr_fn",
                 .range = between(0, 2),
                 .help = "how the shape of a matrix changes its learning rate",
                 .choices = kAdjustLr},
      o.adjust_lr_fn);
    f(RuleOption{"use_muon", {}, "false: AdamW for the matrices too"}, o.use_muon);
    f(RuleOption{"adamw_scale", at_least(0), "learning rate of AdamW, as a multiple of lr"}, o.adamw_scale);
    f(RuleOption{"betas", from_below(0, 1), "decay rates of AdamW's first and second moment"}, o.betas);
    f(RuleOption{"adamw_eps", above(0), "added to the root of AdamW's second moment"}, o.adamw_eps);
  }

  template <class Step>
  static Step step(const Muon& o, std::int64_t t) {
    const AdamW adamw{
        .lr = o.adamw_scale * o.lr, .betas = o.betas, .eps = o.adamw_eps, .weight_decay = o.weight_decay};
    return RuleInfo<AdamW>::step<Step>(adamw, t);
  }

  static bool takes_whole(const Muon& o, std::int64_t dimensions) { return o.use_muon && dimensions >= 2; }

  template <class Step>
  static Step matrix_step(const Muon& o, std::int64_t rows, std::int64_t columns) {
    const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
    const double r = o.adjust_lr_fn == Muon::original          ? std::sqrt(std::fmax(1.0, a / b))
                     : o.adjust_lr_fn == Muon::match_rms_adamw ? 0.2 * std::sqrt(std::fmax(a, b))
                                                               : std::sqrt(a / b);
    return kernels::MuonStep{.lr_r = static_cast<float>(o.lr * r),
                             .keep = static_cast<float>(1 - o.lr * o.weight_decay)};
  }
};

}  // namespace starling
#endif
