// What a scheme must know of torch's backward pass: when each parameter's gradient is there, and when the pass has ended.
//
// torch calls back on the thread that runs backward(), or where parameters are on a GPU on a thread of its own for that GPU,
// while backward() waits. What is thrown reaches its caller.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace starling {

class BackwardHooks {
 public:
  // accumulated(i): .grad of parameter i holds this pass's gradient too. Parameters that require no gradient are not watched.
  BackwardHooks(std::vector<at::Tensor> parameters, std::function<void(std::size_t)> accumulated);
  ~BackwardHooks();
  BackwardHooks(const BackwardHooks&) = delete;
  BackwardHooks& operator=(const BackwardHooks&) = delete;

  // Watches those too that have come to require a gradient since.
  void watch();
  // From accumulated(): calls `done` at the end of the pass that is running.
  static void at_end_of_pass(std::function<void()> done);

 private:
  struct Watched {
    at::Tensor parameter;
    // Keeps torch's accumulator, which else would be another next time. Empty: not watched.
    std::function<void()> unhook{};
  };
  std::vector<Watched> all_;
  std::function<void(std::size_t)> accumulated_;
};

}  // namespace starling
