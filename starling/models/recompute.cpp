#include "starling/models/recompute.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/module.h>

#include "starling/models/autocast.h"

namespace starling {

namespace {

using torch::autograd::variable_list;

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}
void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// The second call of f, but for its inputs.
struct Recomputation final : torch::CustomClassHolder {
  Recomputation(torch::nn::Module& module, Computation f, std::optional<at::Generator> random,
                at::DeviceType device)
      : module(module), f(std::move(f)), random(std::move(random)), device(device) {
    if (this->random) random_state = state_of(*this->random);
    if (at::autocast::is_autocast_enabled(device)) autocast = at::autocast::get_autocast_dtype(device);
  }

  at::Tensor operator()(const variable_list& inputs) {
    at::Tensor now;
    if (random) {
      now = state_of(*random);
      set_state(*random, random_state);
    }
    std::optional<Autocast> as_then;
    if (autocast) as_then.emplace(device, *autocast);
    const c10::AutoGradMode gradient(true);
    at::Tensor y = f(inputs);
    if (random) set_state(*random, now);
    return y;
  }

  torch::nn::Module& module;
  const Computation f;
  std::optional<at::Generator> random;
  at::Tensor random_state;
  const at::DeviceType device;
  std::optional<at::ScalarType> autocast;
};

// Its inputs are those of f, then the module's parameters.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const c10::intrusive_ptr<Recomputation>& again, std::int64_t inputs,
                            at::TensorList all) {
    const variable_list own(all.begin(), all.begin() + inputs);
    context->save_for_backward(own);
    context->saved_data["again"] = c10::IValue::make_capsule(again);
    return again->f(own);
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    const auto again =
        c10::static_intrusive_pointer_cast<Recomputation>(context->saved_data["again"].toCapsule());
    variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    variable_list all = inputs, wanted;
    for (const at::Tensor& parameter : again->module.parameters()) all.push_back(parameter);
    std::ranges::copy_if(all, std::back_inserter(wanted),
                         [](const at::Tensor& tensor) { return tensor.requires_grad(); });

    const variable_list buffers = again->module.buffers();
    variable_list before;
    for (const at::Tensor& buffer : buffers) before.push_back(buffer.clone());
    const at::Tensor y = (*again)(inputs);
    const variable_list found =
        torch::autograd::grad({y}, wanted, gradients, std::nullopt, /*create_graph=*/false,
                              /*allow_unused=*/true);
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);

    variable_list result(2);  // none of what is no tensor
    auto next = found.begin();
    for (const at::Tensor& tensor : all) result.push_back(tensor.requires_grad() ? *next++ : at::Tensor());
    return result;
  }
};

}  // namespace

at::Tensor recomputed(torch::nn::Module& module, const Computation& f, const std::vector<at::Tensor>& inputs,
                      const std::optional<at::Generator>& random) {
  if (!c10::GradMode::is_enabled()) return f(inputs);
  variable_list all = inputs;
  for (const at::Tensor& parameter : module.parameters()) all.push_back(parameter);
  const auto again = c10::make_intrusive<Recomputation>(module, f, random, inputs.front().device().type());
  // apply() does not see the tensors of a std::vector.
  return Recompute::apply(again, std::ssize(inputs), at::TensorList(all));
}

}  // namespace starling
