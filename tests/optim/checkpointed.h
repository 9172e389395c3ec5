// A model and its optimizer, to be saved and loaded.
#pragma once

#include <cstring>

#include "starling/optim/checkpoint.h"
#include "tests/checkpoint/folder.h"
#include "tests/optim/flock.h"

namespace starling {

using at::Tensor;

// Several blocks, unusual strides, a frozen parameter, buffers of both kinds, a parameter that
// rarely has a gradient, and one whose first gradient comes after step 20.
struct Net : torch::nn::Module {
  Net() {
    image =
        register_parameter("image", at::full({4, 3, 5, 5}, 0.3).contiguous(at::MemoryFormat::ChannelsLast));
    large = register_parameter("large", at::full({150'001}, 0.1));
    seldom = register_parameter("seldom", at::full({7}, -0.2));
    late = register_parameter("late", at::full({2, 2}, 0.7));
    frozen = register_parameter("frozen", at::full({2}, 3.0), false);
    mean = register_buffer("mean", at::zeros({3}));
    count = register_buffer("count", at::zeros({}, at::kLong));
  }
  Tensor image, large, seldom, late, frozen, mean, count;
};

// Steps from+1 .. to of worker i. Gradients depend on the step, the worker and the values before.
inline void train(Net& net, Optimizer& optimizer, int i, int from, int to) {
  for (int t = from + 1; t <= to; ++t) {
    const double centre = std::sin(1.0 + i + 0.3 * t);
    net.image.mutable_grad() = net.image.detach() * 1.5 - centre;
    net.large.mutable_grad() = net.large.detach() + centre;
    net.seldom.mutable_grad() = (t + i) % 3 == 0 ? net.seldom.detach() - centre : Tensor();
    net.late.mutable_grad() = t > 20 ? net.late.detach() - centre : Tensor();
    optimizer.step();
    const c10::AutoGradMode no_gradient(false);
    net.mean.add_(centre);
    net.count.add_(1 + i);
  }
}

using Inner = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

struct Setting {
  Rule rule;
  Options options;
  int workers;
  Inner inner{};        // in place of the rule: one of torch's optimizers
  bool narrow = false;  // some parameters in bf16 and fp16
  bool kept = false;    // before step 15 the average of all workers is kept
};

struct Run {
  Run(const Setting& s, const World& world) {
    if (s.narrow) {
      net.image.set_data(net.image.to(at::kBFloat16));
      net.large.set_data(net.large.to(at::kHalf));
      net.late.set_data(net.late.to(at::kBFloat16));
      net.mean.set_data(net.mean.to(at::kBFloat16));
    }
    if (s.inner) {
      inner = s.inner({net.image, net.large, net.seldom, net.late});
      optimizer = std::make_unique<Optimizer>(net, *inner, s.options, world);
    } else {
      optimizer = std::make_unique<Optimizer>(net, s.rule, s.options, world);
    }
  }
  void set_lr(double lr) {  // as a scheduler does
    (inner ? *inner : *optimizer).param_groups()[0].options().set_lr(lr);
  }
  Net net;
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::unique_ptr<Optimizer> optimizer;
};

// Returns an Inner that makes this class with these options.
template <class O, class TheOptions>
Inner made(const TheOptions& options) {
  return [options](std::vector<Tensor> parameters) {
    return std::make_unique<O>(std::move(parameters), options);
  };
}

const Options kNodesOfTwo{.hierarchy = "node", .workers_per_node = 2};

// All values of a tensor in a file.
template <class T>
std::vector<T> values_in(const SafetensorsReader& file, const std::string& name) {
  const TensorInfo& tensor = *file.find(name);
  std::vector<T> values(tensor.bytes() / sizeof(T));
  file.read(tensor, std::as_writable_bytes(std::span(values)));
  return values;
}

// Changes the bytes of a file.
inline void edit(const std::string& path, const std::function<void(std::string&)>& change) {
  std::string text = slurp(path);
  change(text);
  spill(path, text);
}

// Changes one value of a tensor in a file.
template <class T>
void put(const std::string& path, const std::string& tensor, std::size_t index, T value) {
  const std::size_t begin = [&] {
    const SafetensorsReader file(path);
    return file.offset(*file.find(tensor));
  }();
  edit(path,
       [&](std::string& text) { std::memcpy(&text[begin + index * sizeof value], &value, sizeof value); });
}

}  // namespace starling
