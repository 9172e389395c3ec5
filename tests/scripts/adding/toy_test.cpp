
// --- the toy scheme ---

namespace starling {
namespace {

TEST(Toy, IsItsEquation) {
  constexpr int n = 3, kSteps = 7, kEvery = 3;
  constexpr double kRate = 0.1;
  std::vector<double> x(n, 0.5);
  for (int t = 1; t <= kSteps; ++t) {
    const std::vector<double> before = x;
    const double mean = (before[0] + before[1] + before[2]) / n;
    for (std::size_t i = 0; i < n; ++i) {
      const double g = before[i] - centre(static_cast<int>(i), t);
      x[i] = (t % kEvery == 0 ? mean : before[i]) - kRate * g;
    }
  }
  flock(n, [&](int i, World& world) {
    const Tensor p = parameter({50}, 0.5);
    const Options options{.topology = "complete", .scheme = {"toy", {{"stride", kEvery}}}};
    Optimizer optimizer(std::vector<Tensor>{p}, SGD{.lr = kRate}, options, world);
    for (int t = 1; t <= kSteps; ++t) {
      p.mutable_grad() = p.detach() - centre(i, t);
      optimizer.step();
    }
    EXPECT_TRUE(is_all(p, x[static_cast<std::size_t>(i)])) << "worker " << i;
  });
}

}  // namespace
}  // namespace starling
