// Every scheme beside its equation in plain loops in double, with all that a training loop does:
// learning rates that change, missing gradients, clipping, narrow parameters, exact means.
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/schedulers/step_lr.h>

#include "starling/topology/ceca.h"
#include "tests/mixed.h"
#include "tests/optim/every_scheme.h"
#include "tests/optim/lopsided.h"
#include "tests/optim/plain.h"

namespace starling {
namespace {

using at::Tensor;

// One value of each worker, in double. An equation takes it through one step.
struct Values {
  std::vector<double> x;  // the parameters
  // The second value of a scheme that has one: h of CECA, w of pushes, e of diffusion, y of
  // tracking, a momentum.
  std::vector<double> other{};
  std::vector<double> own{};      // m of tracking
  std::vector<double> sent{};     // x after the last step
  std::vector<double> tracked{};  // y of tracking with pushes
  double lr = 0;
  std::vector<double> move{};  // lr u(g) of each worker, or 0 without a gradient
  std::vector<double> keep{};  // 1 - lr weight_decay, or 1
  void adapt(std::vector<double>& value) const {
    for (std::size_t i = 0; i < value.size(); ++i) value[i] = keep[i] * value[i] - move[i];
  }
  void adapt() { adapt(x); }
};

void combine_then_adapt(Values& of, const Graph& round, int) { of.x = mixed(of.x, round), of.adapt(); }

void adapt_then_combine(Values& of, const Graph& round, int) { of.adapt(), of.x = mixed(of.x, round); }

void adapt_alone(Values& of, const Graph&, int) { of.adapt(); }

std::vector<double> pushed(const std::vector<double>& value, const Graph& round) {
  std::vector<double> all = value;
  for (std::size_t i = 0; i < value.size(); ++i) {
    for (const Neighbour& j : round.neighbours[i]) {
      const auto from = static_cast<std::size_t>(j.rank);
      all[i] += j.weight * value[from], all[from] -= j.weight * value[from];
    }
  }
  return all;
}

// Options::mean_every. All that a scheme has beside x goes on, unless it is relative to x.
void take_mean(Values& of) {
  of.x.assign(of.x.size(), std::accumulate(of.x.begin(), of.x.end(), 0.0) / static_cast<double>(of.x.size()));
}

template <std::vector<double> Values::* at>
void take_mean_with(Values& of) {
  take_mean(of), of.*at = of.x;
}

void take_weighted_mean(Values& of) {
  for (std::size_t i = 0; i < of.x.size(); ++i) of.x[i] *= of.other[i];
  take_mean(of), of.other.assign(of.x.size(), 1);
}

// x is the value divided by its weight w.
void push_sum(Values& of, const Graph& round, int) {
  std::vector<double>& w = of.other;
  if (w.empty()) w.assign(of.x.size(), 1);
  for (std::size_t i = 0; i < w.size(); ++i) of.x[i] *= w[i];
  of.adapt();
  of.x = pushed(of.x, round), w = pushed(w, round);
  for (std::size_t i = 0; i < w.size(); ++i) of.x[i] /= w[i];
}

// The step is that of x, and not of the value.
void push_diging(Values& of, const Graph& round, int) {
  std::vector<double>& w = of.other;
  of.adapt();
  for (std::size_t i = 0; i < w.size(); ++i) of.x[i] *= w[i];
  of.x = pushed(of.x, round), w = pushed(w, round), of.tracked = pushed(of.tracked, round);
  for (std::size_t i = 0; i < w.size(); ++i) of.x[i] /= w[i];
}

// x is the vector that the next round sends, `other` the second one.
void ceca_2p(Values& of, const Graph&, int t) {
  const auto n = static_cast<int>(of.x.size());
  const auto rounds = ceca_2p_rounds(n);
  const CecaRound& now = rounds[static_cast<std::size_t>(t) % rounds.size()];
  const CecaRound& next = rounds[static_cast<std::size_t>(t + 1) % rounds.size()];
  if (of.other.empty()) of.other = of.x;
  const std::vector<double> sent = of.x, kept = of.other;
  const double e = now.e;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double y = sent[static_cast<std::size_t>((i + n - now.distance()) % n)];
    const double own = now.sends_x ? e : e + 1, theirs = 2 * e + 1 - own;
    of.x[at] = (sent[at] + y) / 2;
    of.other[at] = (own * kept[at] + theirs * y) / (2 * e + 1);
  }
  of.adapt(of.x), of.adapt(of.other);
  if (now.sends_x != next.sends_x) std::swap(of.x, of.other);
}

template <int share_percent>
void diffusion(Values& of, const Graph& round, int) {
  if (of.other.empty()) of.other.assign(of.x.size(), 0);
  for (std::size_t i = 0; i < of.x.size(); ++i) of.x[i] += of.other[i];
  of.adapt();
  const std::vector<double> together = mixed(of.x, round);
  for (std::size_t i = 0; i < of.x.size(); ++i) {
    const double moved = 0.01 * share_percent * (together[i] - of.x[i]);
    of.x[i] += moved, of.other[i] += moved;
  }
}

// One gradient of each worker, before the rule. `rounded`: to the type of the gradients.
using Gradients = std::vector<std::optional<double>>;
using Rounded = std::function<double(double)>;

// One worker's gradient reaches all.
void average_gradients(Values&, Gradients& g, const Graph&, const Rounded& rounded) {
  double sum = 0;
  bool any = false;
  for (const auto& one : g) sum += one.value_or(0), any = any || one;
  if (any) std::ranges::fill(g, rounded(sum / static_cast<double>(g.size())));
}

template <int beta_percent>
void track(Values& of, Gradients& g, const Graph& round, const Rounded& rounded) {
  if (of.other.empty()) of.other = of.own = std::vector<double>(g.size());
  of.other = mixed(of.other, round);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double fresh = 0.01 * beta_percent * of.own[i] + g[i].value_or(0);
    of.other[i] += fresh - of.own[i];
    of.own[i] = fresh;
    if (g[i] || of.other[i] != 0) g[i] = rounded(of.other[i]);
  }
}

void track_pushed(Values& of, Gradients& g, const Graph&, const Rounded& rounded) {
  if (of.other.empty()) of.other.assign(g.size(), 1), of.own = of.tracked = std::vector<double>(g.size());
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double fresh = g[i].value_or(0);
    of.tracked[i] += fresh - of.own[i];
    of.own[i] = fresh;
    if (g[i] || of.tracked[i] != 0) g[i] = rounded(of.tracked[i] / of.other[i]);
  }
}

// `own` is v^, `other` u; `sent` is m, `tracked` v.
void track_squares(Values& of, Gradients& g, const Graph& round, const Rounded& rounded) {
  constexpr double kFloor = 0.01;  // options_of()
  if (of.other.empty()) {
    of.other = of.own = std::vector<double>(g.size(), kFloor);
    of.sent = of.tracked = std::vector<double>(g.size());
  }
  of.other = mixed(of.other, round);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double fresh = g[i].value_or(0);
    of.sent[i] = 0.9 * of.sent[i] + 0.1 * fresh;
    of.tracked[i] = 0.99 * of.tracked[i] + 0.01 * fresh * fresh;
    if (g[i] || of.sent[i] != 0) g[i] = rounded(of.sent[i] / std::sqrt(std::max(of.other[i], kFloor)));
    const double largest = std::max(of.own[i], of.tracked[i]);
    of.other[i] += largest - of.own[i];
    of.own[i] = largest;
  }
}

// `other` is m.
void quasi_global(Values& of, const Graph& round, int) {
  if (of.other.empty()) of.other.assign(of.x.size(), 0);
  const std::vector<double> before = of.x;
  for (std::size_t i = 0; i < of.x.size(); ++i) of.x[i] -= of.lr * 0.9 * of.other[i];
  of.adapt();
  of.x = mixed(of.x, round);
  for (std::size_t i = 0; i < of.x.size(); ++i)
    of.other[i] = 0.9 * of.other[i] + 0.1 * (before[i] - of.x[i]) / of.lr;
}

void decentlam(Values& of, const Graph& round, int) {
  if (of.other.empty()) of.other.assign(of.x.size(), 0);
  const std::vector<double> before = of.x;
  of.adapt();
  const std::vector<double> together = mixed(of.x, round);
  for (std::size_t i = 0; i < of.x.size(); ++i) {
    of.other[i] = 0.9 * of.other[i] + (before[i] - together[i]) / of.lr;
    of.x[i] = before[i] - of.lr * of.other[i];
  }
}

// `own` is the largest learning rate.
void dsgd_ac(Values& of, const Graph& round, int) {
  of.own.resize(1);
  of.own[0] = std::max(of.own[0], of.lr);
  const std::vector<double> together = mixed(of.x, round);
  for (std::size_t i = 0; i < of.x.size(); ++i) of.x[i] += of.lr / of.own[0] * (together[i] - of.x[i]);
  of.adapt();
}

// `own` is theta, `other` the last y.
void gasloc(Values& of, const Graph& round, int) {
  if (of.own.empty()) of.own = of.other = of.x;
  of.adapt();
  std::vector<double> y = of.own;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += 0.7 * (of.x[i] - y[i]);
  of.x = mixed(y, round);
  for (std::size_t i = 0; i < y.size(); ++i) of.x[i] += 0.9 * (y[i] - of.other[i]);
  of.own = of.x, of.other = y;
}

void take_mean_of_gasloc(Values& of) {
  const std::vector<double> before = of.x;
  take_mean_with<&Values::own>(of);
  for (std::size_t i = 0; i < before.size(); ++i) of.other[i] += of.x[i] - before[i];
}

// `own` is theta, `other` its momentum.
void streaming_diloco(Values& of, const Graph& round, int) {
  if (of.own.empty()) of.own = of.sent = of.x, of.other.assign(of.x.size(), 0);
  of.adapt();
  const std::vector<double> y = mixed(of.sent, round);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double delta = of.own[i] - y[i];
    of.other[i] = 0.9 * of.other[i] + delta;
    of.own[i] -= 0.7 * (delta + 0.9 * of.other[i]);
    of.x[i] += 0.5 * (of.own[i] - of.sent[i]);
  }
  of.sent = of.x;
}

// All values: `own` is theta.
void sparse_loco(Values& of, const Graph& round, int) {
  if (of.own.empty()) of.own = of.x;
  of.adapt();
  for (std::size_t i = 0; i < of.x.size(); ++i) of.own[i] += 0.7 * (of.x[i] - of.own[i]);
  of.x = of.own = mixed(of.own, round);
}

// All coefficients, without signs.
void demo(Values&, Gradients& g, const Graph& round, const Rounded& rounded) {
  std::vector<double> all;
  for (const auto& one : g) all.push_back(one.value_or(0));
  all = mixed(all, round);
  for (std::size_t i = 0; i < g.size(); ++i) {
    if (g[i] || all[i] != 0) g[i] = rounded(all[i]);
  }
}

struct Equation {
  void (*step)(Values&, const Graph& round, int t) = nullptr;
  void (*gradients)(Values&, Gradients&, const Graph& round, const Rounded&) = nullptr;
  const char* elsewhere = nullptr;  // the test that has it, and why
  void (*mean)(Values&) = take_mean;
  double weight_decay = 0.1;
};

constexpr const char* kEventByEvent =
    "virtual_test.cpp repeats recorded averagings: their times are random, so no round has a number";

const std::map<std::string, Equation> kEquations{
    {"cta", {combine_then_adapt}},
    {"atc", {adapt_then_combine}},
    {"dsgd-ac", {dsgd_ac}},
    // The decay follows the vector that is sent.
    {"ceca-2p", {.step = ceca_2p, .mean = take_mean_with<&Values::other>, .weight_decay = 0}},
    {"gradient-tracking", {.step = combine_then_adapt, .gradients = track<0>}},
    {"momentum-tracking", {.step = combine_then_adapt, .gradients = track<90>}},
    {"tracking-adam", {.step = combine_then_adapt, .gradients = track_squares}},
    {"exact-diffusion", {diffusion<50>}},
    {"d2", {diffusion<100>}},
    {"quasi-global", {quasi_global}},
    {"decentlam", {decentlam}},
    {"quasi-global-adam", {.elsewhere = "quasi_global_adam_test.cpp: a step depends on all parameters"}},
    {"gasloc", {.step = gasloc, .mean = take_mean_of_gasloc}},
    {"streaming-diloco", {.step = streaming_diloco, .mean = take_mean_with<&Values::sent>}},
    // Few values: sparse_loco_test.cpp, demo_test.cpp.
    {"sparse-loco", {.step = sparse_loco, .mean = take_mean_with<&Values::own>}},
    {"demo", {.step = combine_then_adapt, .gradients = demo}},
    {"choco", {adapt_then_combine}},         // it sends all values by default
    {"power-gossip", {combine_then_adapt}},  // of one dimension; power_gossip_test.cpp has matrices
    {"push-sum", {.step = push_sum, .mean = take_weighted_mean}},
    {"push-diging", {.step = push_diging, .gradients = track_pushed, .mean = take_weighted_mean}},
    {"local", {adapt_alone}},
    {"all-reduce", {.step = adapt_alone, .gradients = average_gradients}},
    {"ad-psgd", {.elsewhere = kEventByEvent}},
    {"ad-psgd-bipartite", {.elsewhere = kEventByEvent}},
    {"swarm", {.elsewhere = kEventByEvent}},
    {"a2cid2", {.elsewhere = kEventByEvent}},
    {"async-push-sum", {.elsewhere = kEventByEvent}},
    {"async-push-pull", {.elsewhere = kEventByEvent}}};

// How a training loop treats gradients.
enum class Loop {
  backward,  // backward(); parameters are frozen by requires_grad
  by_hand,   // sets .grad, or leaves it out
  clipping,  // as by_hand, with torch's clip_grad_norm_ before step()
  clip,      // as by_hand, with Options::clip
  means,     // as by_hand, with Options::mean_every
  narrow     // as by_hand, with narrow parameters, and gradients that do not depend on x
};

constexpr int kEquationWorkers = 5, kEquationSteps = 20, kMeanEvery = 3;
constexpr double kLargest = 100;  // of a gradient's norm

// The use of a parameter by worker i in step t.
struct Used {
  std::int64_t size;
  bool (*in)(int i, int t);
};
const std::array<Used, 5> kUsed{
    {{70'000, [](int, int) { return true; }},
     {9000, [](int i, int t) { return (t + i) % 3 != 0 && i != 2; }},
     {8000, [](int, int t) { return t < 4 || t > 7; }},           // all freeze it
     {5, [](int i, int t) { return i != 1 || t < 3 || t > 8; }},  // one freezes it
     {6, [](int, int t) { return t > 4; }}}};                     // it thaws

// Worker i's loss of a parameter is the sum of c/2 (x - s centre(i, t))^2, with the curvature c and
// a sign s for each value. So a value's way is that of one number times s.
double curvature(std::size_t i, std::size_t parameter) {
  return 1 + 0.5 * std::sin(2.0 * static_cast<double>(i) + static_cast<double>(parameter));
}
Tensor signs(std::int64_t size) {
  return at::sin(1 + 1.3 * at::arange(size, at::kDouble)).sign().to(at::kFloat);
}

AccumAdamW rule_at(int t, const Equation& equation) {
  const double lr = (t == 0 ? 0.2 : 0.08) * std::pow(0.5, std::max(t - 1, 0) / 4);
  return {.lr = lr, .weight_decay = equation.weight_decay, .window = 3};
}

class SchemeEquations : public EveryScheme {
 protected:
  // Pushes go over a graph on which workers have different weights.
  Options options() const {
    Options all = EveryScheme::options();
    if (info().traits.edges == EdgeKind::directed) all.topology = lopsided_.path();
    return all;
  }
  // By parameter and worker.
  std::vector<std::vector<double>> plain_loops(const Options& options, Loop loop, at::ScalarType type,
                                               bool& all_clipped, bool& all_free) const;
  void expect_the_equation(Loop loop, at::ScalarType type = at::kFloat) const {
    expect_the_equation_over(options(), loop, type);
  }
  void expect_the_equation_over(Options options, Loop loop, at::ScalarType type = at::kFloat) const;

 private:
  const Lopsided lopsided_;
};

std::vector<std::vector<double>> SchemeEquations::plain_loops(const Options& options, Loop loop,
                                                              at::ScalarType type, bool& all_clipped,
                                                              bool& all_free) const {
  constexpr std::size_t n = kEquationWorkers;
  const Equation& equation = kEquations.at(std::string(info().name));
  const Schedule schedule = schedule_of(options, kEquationWorkers, 1);
  std::vector<Values> values(kUsed.size(), {.x = std::vector<double>(n, 0.5)});
  std::vector<std::vector<Plain>> state(kUsed.size(), std::vector<Plain>(n));
  std::vector<Gradients> g(kUsed.size(), Gradients(n));
  const auto rounded = [&](double value) {
    return loop == Loop::narrow ? at::full({}, value, type).item<double>() : value;
  };
  const auto clip = [&] {
    for (std::size_t i = 0; i < n; ++i) {
      double square = 0;
      for (std::size_t k = 0; k < g.size(); ++k)
        square += static_cast<double>(kUsed[k].size) * std::pow(g[k][i].value_or(0), 2);
      const double scale = std::min(1.0, kLargest / (std::sqrt(square) + 1e-6));
      all_clipped = all_clipped && scale < 1, all_free = all_free && scale == 1;
      for (auto& of : g) {
        if (of[i]) *of[i] *= scale;
      }
    }
  };
  for (int t = 0; t < kEquationSteps; ++t) {
    for (std::size_t k = 0; k < g.size(); ++k) {
      for (std::size_t i = 0; i < n; ++i) {
        g[k][i].reset();
        if (!kUsed[k].in(static_cast<int>(i), t)) continue;
        const double where = centre(static_cast<int>(i), t);
        g[k][i] = loop == Loop::narrow ? rounded(where) : curvature(i, k) * (values[k].x[i] - where);
      }
    }
    const Graph round = schedule.rounds.empty() ? Graph{} : schedule.at(t);
    if (loop == Loop::clipping) clip();
    for (std::size_t k = 0; k < g.size() && equation.gradients != nullptr; ++k) {
      const Gradients before = g[k];
      equation.gradients(values[k], g[k], round, rounded);
      // A frozen parameter takes no gradient from others either, unless they are summed for all.
      for (std::size_t i = 0; i < n && loop == Loop::backward && mixes(); ++i) {
        if (!before[i]) g[k][i].reset();
      }
    }
    if (loop == Loop::clip) clip();
    const AccumAdamW rule = rule_at(t, equation);
    for (std::size_t k = 0; k < g.size(); ++k) {
      values[k].move.assign(n, 0), values[k].keep.assign(n, 1), values[k].lr = rule.lr;
      for (std::size_t i = 0; i < n; ++i) {
        if (!g[k][i]) continue;
        values[k].move[i] = rule.lr * state[k][i].direction(*g[k][i], rule);
        values[k].keep[i] = 1 - rule.lr * rule.weight_decay;
      }
      equation.step(values[k], round, t);
      if (loop == Loop::means && (t + 1) % kMeanEvery == 0) equation.mean(values[k]);
    }
  }
  std::vector<std::vector<double>> ends;
  for (const Values& of : values) ends.push_back(of.x);
  return ends;
}

void SchemeEquations::expect_the_equation_over(Options options, Loop loop, at::ScalarType type) const {
  const auto known = kEquations.find(std::string(info().name));
  ASSERT_NE(known, kEquations.end()) << "add the scheme's equation here";
  const Equation& equation = known->second;
  ASSERT_NE(equation.step == nullptr, equation.elsewhere == nullptr);
  if (equation.step == nullptr) GTEST_SKIP() << equation.elsewhere;
  bool all_clipped = true, all_free = true;
  const auto x = plain_loops(options, loop, type, all_clipped, all_free);
  EXPECT_FALSE((all_clipped || all_free) && (loop == Loop::clip || loop == Loop::clipping));
  if (loop == Loop::clip) options.clip = kLargest;
  if (loop == Loop::means) options.mean_every = kMeanEvery;
  flock(kEquationWorkers, [&](int i, World& world) {
    std::vector<Tensor> parameters;
    for (const Used& used : kUsed) {
      parameters.push_back(parameter({used.size}, 0.5, type));
      parameters.back().data().mul_(signs(used.size));
    }
    Optimizer optimizer(parameters, rule_at(0, equation), options, world);
    torch::optim::StepLR halves(optimizer, 4, 0.5);  // torch's halves after 5, 9, .. steps
    for (int t = 0; t < kEquationSteps; ++t) {
      if (t == 1) optimizer.param_groups()[0].options().set_lr(0.08);
      optimizer.zero_grad();
      Tensor loss = at::zeros({});
      for (std::size_t k = 0; k < kUsed.size(); ++k) {
        const Tensor &p = parameters[k], s = signs(kUsed[k].size);
        const bool used = kUsed[k].in(i, t);
        const double c = curvature(static_cast<std::size_t>(i), k);
        if (loop == Loop::backward) {
          p.set_requires_grad(used);
          if (used) loss = loss + (p - s * centre(i, t)).square().sum() * (0.5 * c);
        } else if (used) {
          p.mutable_grad() =
              loop == Loop::narrow ? (s * centre(i, t)).to(type) : (p.detach() - s * centre(i, t)) * c;
        }
      }
      if (loop == Loop::backward) loss.backward();
      if (loop == Loop::clipping) torch::nn::utils::clip_grad_norm_(parameters, kLargest);
      optimizer.step();
      halves.step();
    }
    EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.005);
    const OptimizerState state = optimizer.state();
    for (std::size_t k = 0; k < kUsed.size(); ++k) {
      Tensor now = parameters[k].detach();
      if (loop == Loop::narrow) {
        const Tensor master = state.tensors.at("master.0." + std::to_string(k));
        EXPECT_TRUE(at::equal(now, master.to(type)));
        now = master;
      }
      const double should = x[k][static_cast<std::size_t>(i)];
      const double error = loop == Loop::narrow ? 1e-4 : 1e-5;
      const double near_zero = loop == Loop::clipping ? error : 0.1 * error;  // torch's norm is in fp32
      EXPECT_TRUE(at::allclose(now, signs(kUsed[k].size) * should, error, near_zero))
          << "worker " << i << ", parameter " << k << ": " << now[0].item<double>() << " " << should;
    }
    expect_undisturbed(optimizer);
  });
}

TEST_P(SchemeEquations, HoldWithBackward) { expect_the_equation(Loop::backward); }
TEST_P(SchemeEquations, HoldWithGradientsSetByHand) { expect_the_equation(Loop::by_hand); }
TEST_P(SchemeEquations, HoldWithTorchsClipping) { expect_the_equation(Loop::clipping); }
TEST_P(SchemeEquations, HoldWithTheClippingOption) { expect_the_equation(Loop::clip); }
TEST_P(SchemeEquations, HoldWithExactMeans) {
  if (info().takes_means()) expect_the_equation(Loop::means);
}
TEST_P(SchemeEquations, HoldOverAGraphThatChanges) {
  Options changing = options();
  changing.topology = "base-2";
  try {
    check_options(changing, kEquationWorkers, kEquationWorkers, false);
  } catch (const UsageError& refused) {
    GTEST_SKIP() << refused.what();
  }
  expect_the_equation_over(changing, Loop::by_hand);
}
TEST_P(SchemeEquations, HoldForMastersOfBfloat16) { expect_the_equation(Loop::narrow, at::kBFloat16); }
TEST_P(SchemeEquations, HoldForMastersOfFloat16) { expect_the_equation(Loop::narrow, at::kHalf); }

TEST(SchemeEquationTable, NamesNoOtherScheme) {
  for (const auto& [name, equation] : kEquations) EXPECT_EQ(scheme_info(name).name, name);
}

STARLING_EVERY_SCHEME(SchemeEquations);

}  // namespace
}  // namespace starling
