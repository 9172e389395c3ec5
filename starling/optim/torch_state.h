// The options and state of torch's own optimizers as tensors and numbers, for the file of an Optimizer around one of
// them. Typed, field by field: what torch itself writes is an archive that Python runs as a program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace starling {

class TorchState {
 public:
  // Of torch::optim's SGD, Adam, AdamW, Adagrad or RMSprop. Throws UsageError for any other class, one derived from
  // these too: it may keep what is not known here.
  static std::unique_ptr<TorchState> of(torch::optim::Optimizer& optimizer);
  virtual ~TorchState() = default;

  virtual std::string name() const = 0;  // "torch::optim::Adam"
  virtual std::vector<std::string> fields()
      const = 0;  // a parameter's tensors, as torch names them: "exp_avg"

  // One parameter's state.
  struct Fields {
    std::int64_t steps = 0;
    std::vector<at::Tensor>
        tensors;  // in the order of fields(); undefined: the optimizer has none, or none yet
  };
  // The tensors are the optimizer's own. Throws UsageError, naming the field, where one is not dense float32.
  virtual Fields get(const at::Tensor& parameter, const std::string& parameter_name) const = 0;
  virtual void set(const at::Tensor& parameter, const Fields& state) = 0;

  // The options of a parameter group as numbers, the learning rate first, and back.
  virtual std::vector<double> values(std::size_t group) const = 0;
  virtual void set_values(std::size_t group, const std::vector<double>& values) = 0;
  // Throws UsageError where torch would refuse the options.
  virtual void check_values(const std::vector<double>& values) const = 0;
  // The first field that a parameter's state lacks with these (good) options, or an empty name.
  virtual std::string lacks(const Fields& state, const std::vector<double>& values) const = 0;
};

}  // namespace starling
