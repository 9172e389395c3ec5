// Forward and backward passes of a model on one core. bench/models.py runs the same model in
// PyTorch beside it.
//
//   bench-models MODEL PASSES        resnet18, gpt2 or transformer, in the shapes of recipes/small
//
// Prints the seconds of each pass behind a warm-up, and the number of parameters.
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "bench/measure.h"
#include "starling/models/gpt2.h"
#include "starling/models/resnet.h"
#include "starling/models/transformer.h"

namespace {

using starling::Gpt2;
using starling::Transformer;

struct Task {
  std::shared_ptr<torch::nn::Module> model;
  std::function<at::Tensor()> loss;
};

at::Tensor tokens(std::int64_t vocabulary, std::int64_t n, std::int64_t t) {
  return at::randint(Transformer::kEnd + 1, vocabulary, {n, t}, at::kLong);
}

Task resnet18() {
  auto model = starling::make_resnet({.depth = 18, .classes = 10, .small_images = true});
  const at::Tensor images = at::randn({32, 3, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor labels = at::randint(10, {32}, at::kLong);
  return {model, [=] { return at::cross_entropy_loss(model->forward(images), labels); }};
}

Task gpt2() {
  const auto model = std::make_shared<Gpt2>(
      starling::Gpt2Options{.vocabulary = 4096, .context = 256, .width = 256, .heads = 4, .layers = 6});
  const at::Tensor read = tokens(4096, 4, 256), next = tokens(4096, 4, 256);
  return {model, [=] { return model->loss(read, next); }};
}

// Half of the sentences are shorter than the others, and padded.
Task transformer() {
  const auto model = std::make_shared<Transformer>(
      starling::TransformerOptions{.vocabulary = 8000, .width = 128, .heads = 4, .layers = 3, .inner = 512});
  const at::Tensor source = tokens(8000, 40, 26), target = tokens(8000, 40, 26);
  for (const at::Tensor& side : {source, target}) side.narrow(0, 0, 20).narrow(1, 20, 6).zero_();
  return {model, [=] { return model->loss(source, target, 0.1); }};
}

double pass(const Task& task) {
  const double begin = bench::now();
  task.model->zero_grad();
  task.loss().backward();
  return bench::now() - begin;
}

int run(int argc, char** argv) {
  const std::map<std::string, Task (*)()> tasks{
      {"resnet18", resnet18}, {"gpt2", gpt2}, {"transformer", transformer}};
  const auto found = argc == 3 ? tasks.find(argv[1]) : tasks.end();
  const int passes = argc == 3 ? std::atoi(argv[2]) : 0;
  if (found == tasks.end() || passes < 1)
    throw std::invalid_argument("expected a model, resnet18, gpt2 or transformer, and a number of passes");
  at::set_num_threads(1);
  const Task task = found->second();
  pass(task);
  std::vector<double> seconds;
  for (int k = 0; k < passes; ++k) seconds.push_back(pass(task));
  std::int64_t parameters = 0;
  for (const at::Tensor& p : task.model->parameters()) parameters += p.numel();
  std::printf("%s\n", nlohmann::json{{"seconds", seconds}, {"parameters", parameters}}.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-models", [&] { return run(argc, argv); });
}
