// A GAN learns to draw points on a circle. Two models play against each other, and each has an
// optimizer.
//
//   torchrun --no-python --nproc-per-node 3 out/examples/3-gan
#include <cstdio>

#include <torch/torch.h>

#include "starling/optim/optimizer.h"

namespace {

constexpr int kSteps = 1500, kBatch = 64, kNoise = 4;
constexpr double kTurn = 6.283185307179586;  // 2 pi

torch::nn::Sequential network(int inputs, int outputs) {
  return torch::nn::Sequential(torch::nn::Linear(inputs, 64), torch::nn::LeakyReLU(),
                               torch::nn::Linear(64, 64), torch::nn::LeakyReLU(),
                               torch::nn::Linear(64, outputs));
}

torch::Tensor real_points() {
  const auto angle = kTurn * torch::rand({kBatch, 1});
  return torch::cat({angle.cos(), angle.sin()}, 1);
}

// The loss of the critic's answers, for the truth "all are real" (1) or "all are drawn" (0).
torch::Tensor loss(const torch::Tensor& answers, double truth) {
  return torch::binary_cross_entropy_with_logits(answers, torch::full_like(answers, truth));
}

}  // namespace

int main() {
  const auto world = starling::World::from_environment();
  torch::manual_seed(world.rank);  // each worker draws points and noise of its own
  auto generator = network(kNoise, 2), critic = network(2, 1);
  const starling::Adam rule{.lr = 1e-3, .betas = {0.5, 0.99}};
  starling::Optimizer generator_optimizer(*generator, rule, {}, world);
  starling::Optimizer critic_optimizer(*critic, rule, {}, world);

  for (int step = 0; step < kSteps; ++step) {
    const auto drawn = generator->forward(torch::randn({kBatch, kNoise}));
    critic_optimizer.zero_grad();
    (loss(critic->forward(real_points()), 1) + loss(critic->forward(drawn.detach()), 0)).backward();
    critic_optimizer.step();

    generator_optimizer.zero_grad();
    loss(critic->forward(drawn), 1).backward();
    generator_optimizer.step();
  }

  const starling::Consensus average(generator_optimizer);
  const torch::NoGradGuard no_grad;
  torch::manual_seed(0);  // the same noise on all workers, so that they draw the same points
  const auto points = generator->forward(torch::randn({3000, kNoise}));
  const auto off = (points.norm(2, 1) - 1).abs().mean().item<double>();
  const auto center = points.mean(0).norm().item<double>();
  std::printf("worker %d of %d: the average generator draws %.4f off the circle, its center %.4f off\n",
              world.rank, world.size, off, center);
}
