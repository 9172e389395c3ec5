// The update of a worker in fp32, with the kernels of every instruction set that runs here.
#pragma once

#include "starling/optim/rules.h"
#include "tests/kernels/values.h"

namespace starling::kernels {

// The data of a worker.
struct Worker {
  explicit Worker(std::size_t n, std::uint32_t seed = 1)
      : x(random_values(n, seed)), outgoing(x), m(n, 0), v(n, 0), b(n, 0) {}
  RuleState state() { return {m.data(), v.data(), b.data()}; }
  Values x, outgoing, m, v, b;
};

// The neighbours of one round: q_j and W_ij.
struct Neighbours {
  Neighbours(int count, std::size_t n, std::uint32_t seed) {
    for (int j = 0; j < count; ++j) {
      q.push_back(random_values(n, seed + static_cast<std::uint32_t>(j)));
      w.push_back(static_cast<float>(0.7 / (count + j)));
    }
  }
  std::vector<Mix> mixes(const Values& mine) const {
    std::vector<Mix> mixes;
    for (std::size_t j = 0; j < q.size(); ++j) mixes.push_back({w[j], q[j].data(), mine.data()});
    return mixes;
  }
  double mixed(double x, double mine, std::size_t i) const {
    double sum = x;
    for (std::size_t j = 0; j < q.size(); ++j) sum += w[j] * (q[j][i] - mine);
    return sum;
  }
  std::vector<Values> q;
  std::vector<float> w;
};

class Update : public testing::TestWithParam<Kernels> {
 protected:
  bool update(const Step& step, std::span<const Mix> mixes, float* x, const float* g, RuleState state,
              float* outgoing, std::size_t n) const {
    return GetParam().update(step, mixes, x, {g}, state, {outgoing}, n);
  }
  bool update(const Step& step, std::span<const Mix> mixes, Worker& w, const float* g) const {
    return update(step, mixes, w.x.data(), g, w.state(), w.outgoing.data(), w.x.size());
  }
};

}  // namespace starling::kernels
