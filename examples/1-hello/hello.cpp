// Three workers learn a curve, and each sees a third of it only. Against plain libtorch two lines change: (1), (2).
//
//   torchrun --no-python --nproc-per-node 3 build/1-hello
#include <cstdio>

#include <torch/torch.h>

#include "starling/optim/optimizer.h"

int main() {
  starling::World world = starling::World::from_environment();  // (1) which worker am I, and where are the others
  torch::manual_seed(world.rank);
  torch::nn::Sequential model(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  starling::Optimizer optimizer(*model, starling::AdamW{.lr = 0.01}, {}, world);  // (2) was: torch::optim::AdamW

  const auto curve = [](const torch::Tensor& x) { return torch::sin(6 * x); };
  const torch::Tensor all = torch::linspace(0, 1, 300).unsqueeze(1);
  for (int step = 0; step < 1000; ++step) {
    const torch::Tensor x = (torch::rand({32, 1}) + world.rank) / world.size;  // this worker's part of the curve
    optimizer.zero_grad();
    torch::mse_loss(model->forward(x), curve(x)).backward();
    optimizer.step();
  }

  starling::Consensus average(optimizer);  // the model is the average of all workers' until the end of the scope
  torch::NoGradGuard no_grad;
  const double loss = torch::mse_loss(model->forward(all), curve(all)).item<double>();
  std::printf("worker %d of %d: loss of the average model on the whole curve %.6f\n", world.rank, world.size, loss);
}
