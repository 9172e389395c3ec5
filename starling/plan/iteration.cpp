#include "starling/plan/iteration.h"

#include <algorithm>

namespace starling {

namespace {

using What = Bar::What;

// Appends one bar after the other.
class Lane {
 public:
  Lane(std::vector<Bar>& bars, double at) : bars_(bars), at_(at) {}
  double add(What what, int block, double seconds) {
    bars_.push_back({what, block, at_, at_ + seconds});
    return at_ += seconds;
  }
  void wait_until(double time) { at_ = std::max(at_, time); }
  double at() const { return at_; }

 private:
  std::vector<Bar>& bars_;
  double at_;
};

}  // namespace

Iteration all_reduce_iteration(double F, const std::vector<double>& b, const std::vector<double>& u,
                               const std::vector<double>& c) {
  Iteration one;
  Lane work(one.bars, 0), link(one.bars, 0);
  work.add(What::forward, -1, F);
  const int blocks = static_cast<int>(b.size());
  for (int i = 0; i < blocks; ++i) {
    link.wait_until(work.add(What::backward, i, b[i]));
    link.add(What::link, i, c[i]);
  }
  work.wait_until(link.at());
  for (int i = 0; i < blocks; ++i) work.add(What::update, i, u[i]);
  one.seconds = work.at();
  return one;
}

Iteration iteration_ahead(double F, const std::vector<double>& b, const std::vector<double>& u,
                          const std::vector<double>& c) {
  constexpr int kUntilSteady = 50;  // iterations
  const int blocks = static_cast<int>(b.size());
  std::vector<Bar> all;
  std::vector<double> arrived(b.size());
  Lane work(all, 0), link(all, 0);
  double begin = 0;
  for (int t = 0; t < kUntilSteady; ++t) {
    begin = work.at();
    work.add(What::forward, -1, F);
    for (int i = 0; i < blocks; ++i) work.add(What::backward, i, b[i]);
    for (int i = 0; i < blocks; ++i) {
      work.wait_until(arrived[i]);
      link.wait_until(work.add(What::update, i, u[i]));
      arrived[i] = link.add(What::link, i, c[i]);
    }
  }
  Iteration last{.seconds = work.at() - begin};
  for (Bar bar : all) {
    if (bar.end <= begin) continue;
    bar.begin -= begin;
    bar.end -= begin;
    last.bars.push_back(bar);
  }
  return last;
}

}  // namespace starling
