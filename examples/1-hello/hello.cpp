// Three workers learn a curve. Each worker sees one third of it. Two lines differ from plain
// libtorch: (1) and (2).
//
//   torchrun --no-python --nproc-per-node 3 out/examples/1-hello
#include <cstdio>

#include <torch/torch.h>

#include "starling/optim/optimizer.h"

int main() {
  auto world = starling::World::from_environment();  // (1) new: joins the other workers
  torch::manual_seed(world.rank);
  torch::nn::Sequential model(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  starling::Optimizer optimizer(*model, starling::AdamW{.lr = 0.01}, {},
                                world);  // (2) was torch::optim::AdamW

  for (int step = 0; step < 1000; ++step) {
    const auto x =
        6 * (torch::rand({32, 1}) + world.rank) / world.size - 3;  // this worker's part of -3 ... 3
    optimizer.zero_grad();
    torch::mse_loss(model->forward(x), torch::sin(x)).backward();
    optimizer.step();
  }

  starling::Consensus average(
      optimizer);  // until the end of the scope the model is the average of all workers' models
  torch::NoGradGuard no_grad;
  const auto x = torch::linspace(-3, 3, 300).unsqueeze(1);
  const auto loss = torch::mse_loss(model->forward(x), torch::sin(x)).item<double>();
  std::printf("worker %d of %d: loss of the average model %.6f\n", world.rank, world.size, loss);
}
