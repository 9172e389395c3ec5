// Quadratic losses of many values that differ between workers, and the matrix of a round.
#pragma once

#include "tests/optim/flock.h"

namespace starling {

// Worker i's loss is the sum of a_i / 2 (x - c_i)^2.
struct Bowls {
  static constexpr int workers = 5, values = 40;
  at::Tensor a = 1 + 0.5 * waves(1.3), c = 2 * waves(0.7);  // a row for each worker, in double

  at::Tensor gradient(int i, const at::Tensor& x) const {
    return (a[i] * (x.detach().to(at::kDouble) - c[i])).to(at::kFloat);
  }
  Bowls equal() const { return {a[0].expand_as(a), c[0].expand_as(c)}; }

 private:
  static at::Tensor waves(double step) {
    return at::sin(at::arange(workers * values, at::kDouble) * step).view({workers, values});
  }
};

inline at::Tensor tensor_of_weights(const Graph& round) {
  at::Tensor w = at::zeros({round.workers(), round.workers()}, at::kDouble);
  for (int i = 0; i < round.workers(); ++i) {
    w[i][i] = round.self_weight(i);
    for (const Neighbour& j : round.neighbours[static_cast<std::size_t>(i)]) w[i][j.rank] = j.weight;
  }
  return w;
}

// The first n workers' parameters after so many steps, as rows in double.
inline at::Tensor trained_in_bowls(const Bowls& losses, const Rule& rule, const Options& options, int n,
                                   int steps) {
  return at::stack(results_of(n, [&](int i, World& world) {
    const at::Tensor x = parameter({Bowls::values});
    Optimizer optimizer({x}, rule, options, world);
    for (int t = 0; t < steps; ++t) {
      x.mutable_grad() = losses.gradient(i, x);
      optimizer.step();
    }
    expect_undisturbed(optimizer);
    return x.detach().to(at::kDouble);
  }));
}

inline double most_apart(const at::Tensor& one, const at::Tensor& other) {
  return (one - other).abs().max().item<double>();
}

}  // namespace starling
