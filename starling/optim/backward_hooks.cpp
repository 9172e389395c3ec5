#include "starling/optim/backward_hooks.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace starling {

BackwardHooks::BackwardHooks(std::vector<at::Tensor> parameters, std::function<void(std::size_t)> accumulated)
    : accumulated_(std::move(accumulated)) {
  for (at::Tensor& p : parameters) all_.push_back({std::move(p)});
  watch();
}

BackwardHooks::~BackwardHooks() {
  for (const Watched& w : all_) {
    if (w.unhook) w.unhook();
  }
}

void BackwardHooks::watch() {
  using torch::autograd::variable_list;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    Watched& w = all_[i];
    if (w.unhook || !w.parameter.requires_grad()) continue;
    const auto accumulator = torch::autograd::impl::grad_accumulator(w.parameter);
    const auto hook = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, i](const variable_list& outputs, const variable_list&) {
          accumulated_(i);
          return outputs;
        }));
    w.unhook = [accumulator, hook] { accumulator->del_post_hook(hook); };
  }
}

void BackwardHooks::at_end_of_pass(std::function<void()> done) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(done));
}

}  // namespace starling
