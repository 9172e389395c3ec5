// The options and state of torch's own optimizers as tensors and numbers, for the file of an
// Optimizer around one of them. They are saved field by field, with types. torch's own archives
// contain a program that Python runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace starling {

// An optimizer whose own state is saved elsewhere, as Python's state_dict() has it. The state of
// the Optimizer around it then holds everything else.
class SavedElsewhere {
 public:
  virtual ~SavedElsewhere() = default;
};

class TorchState {
 public:
  // For torch::optim's SGD, Adam, AdamW, Adagrad or RMSprop, and for what is SavedElsewhere. Throws
  // UsageError for any other class. A derived class counts as another one, since it may keep state
  // that is not known here.
  static std::unique_ptr<TorchState> of(torch::optim::Optimizer& optimizer);
  virtual ~TorchState() = default;

  virtual std::string name() const = 0;  // "torch::optim::Adam"
  virtual std::vector<std::string> fields()
      const = 0;  // a parameter's tensors, with torch's names: "exp_avg"

  // One parameter's state.
  struct Fields {
    std::int64_t steps = 0;
    std::vector<at::Tensor>
        tensors;  // in the order of fields(); undefined: the optimizer has none, or none yet
  };
  // The tensors are the optimizer's own. Throws UsageError if one is not dense float32, and names
  // the field.
  virtual Fields get(const at::Tensor& parameter, const std::string& parameter_name) const = 0;
  virtual void set(const at::Tensor& parameter, const Fields& state) = 0;

  // The options of a parameter group as numbers, the learning rate first, and back.
  virtual std::vector<double> values(std::size_t group) const = 0;
  virtual void set_values(std::size_t group, const std::vector<double>& values) = 0;
  // Throws UsageError if torch would refuse the options.
  virtual void check_values(const std::vector<double>& values) const = 0;
  // The first field that a parameter's state lacks with these options, or an empty name. The
  // options must be valid.
  virtual std::string lacks(const Fields& state, const std::vector<double>& values) const = 0;
};

}  // namespace starling
