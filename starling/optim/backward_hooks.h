// Tells a scheme when backward() has each parameter's gradient, and when the pass has ended.
//
// torch calls back on the thread that runs backward(). For parameters on a GPU, it calls back on
// its thread for that GPU, while backward() waits. An exception of a callback reaches the caller of
// backward().
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace starling {

class BackwardHooks {
 public:
  // accumulated(i): .grad of parameter i now holds this pass's gradient too. Parameters that
  // require no gradient are not watched.
  BackwardHooks(std::vector<at::Tensor> parameters, std::function<void(std::size_t)> accumulated);
  ~BackwardHooks();
  BackwardHooks(const BackwardHooks&) = delete;
  BackwardHooks& operator=(const BackwardHooks&) = delete;

  // Also watches parameters that require a gradient only since the last call.
  void watch();
  // Called within accumulated(). Calls `done` at the end of the pass that is running.
  static void at_end_of_pass(std::function<void()> done);

 private:
  struct Watched {
    at::Tensor parameter;
    // Keeps torch's accumulator alive; otherwise torch makes another one next time. Empty: not
    // watched.
    std::function<void()> unhook{};
  };
  std::vector<Watched> all_;
  std::function<void(std::size_t)> accumulated_;
};

}  // namespace starling
