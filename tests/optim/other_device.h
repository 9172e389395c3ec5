// Blocks on a GPU have the bits of the CPU, through streams, copies and the device's thread. The
// GPU is the mock driver tests/kernels/cuda/other_driver.cpp. It uses the host's memory, and does
// all work as late as possible. Workers are threads.
#pragma once

#include <cstdlib>

#include <dlfcn.h>

#include "starling/optim/blocks.h"
#include "starling/optim/cuda/device.h"
#include "starling/optim/options.h"
#include "starling/optim/pass.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/table.h"
#include "starling/topology/schedules.h"
#include "tests/checkpoint/folder.h"
#include "tests/kernels/cuda/other_nvrtc.h"
#include "tests/optim/flock.h"

namespace starling {

using at::Tensor;

constexpr int kSteps = 5;
// The message of a call of the driver that was made to fail, as a regular expression.
constexpr const char* kCallFailed = "CUDA: GPU 0: [^:]+: error 719, unspecified launch failure";

struct Case {
  std::string name{};
  Rule rule = AdamW{.lr = 0.05};
  Wire wire = Wire::fp32;
  at::ScalarType type = at::kFloat;
  std::string scheme = "cta";
  std::string topology = "ring";
  int one_in = 1;
  double clip = 20;
};
inline void PrintTo(const Case& the, std::ostream* out) { *out << the.name; }

// A worker's parameters, masters and rule state at the end, as bytes.
using After = std::vector<std::vector<std::byte>>;

inline std::vector<std::byte> bytes_in(const Tensor& tensor) {
  const Tensor here = tensor.cpu();
  const auto* const bytes = static_cast<const std::byte*>(here.const_data_ptr());
  return {bytes, bytes + here.nbytes()};
}

class OtherDevice : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", (cache_ / "").c_str(), 1);
    setenv("STARLING_NVRTC", kernels::cuda::other_nvrtc().c_str(), 1);
    library_ = dlopen(kernels::cuda::other_driver().c_str(), RTLD_NOW);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    unsetenv("STARLING_NVRTC");
  }
  std::shared_ptr<CudaDevice> device() {
    return std::make_shared<CudaDevice>(
        std::make_unique<kernels::cuda::Gpu>(0, kernels::cuda::other_driver()), at::TensorOptions(at::kByte),
        at::TensorOptions(at::kByte), [] { return nullptr; });
  }
  // Empties the default stream, as torch's next work in it would.
  void drain() { drainer()(); }
  void (*drainer())() { return reinterpret_cast<void (*)()>(dlsym(library_, "other_driver_drain")); }
  void fail(bool now) { reinterpret_cast<void (*)(bool)>(dlsym(library_, "other_driver_fail"))(now); }
  // So many calls of the driver succeed, then one fails: all that follow it too, with for_good.
  // Below 0: none does.
  void fail_after(int calls, bool for_good = false) {
    reinterpret_cast<void (*)(int, bool)>(dlsym(library_, "other_driver_fail_after"))(calls, for_good);
  }
  // The call that failed; empty: none has.
  std::string failed_call() {
    return reinterpret_cast<const char* (*)()>(dlsym(library_, "other_driver_failed_call"))();
  }
  // The contexts, modules, streams and events that there are.
  std::size_t held() { return number("other_driver_held"); }
  // The copies and launches that the mock GPU has not done yet.
  std::size_t unfinished() { return number("other_driver_unfinished"); }
  // How often this thread has waited for it.
  std::size_t waits() { return number("other_driver_waits"); }

  // On the CPU, on the mock GPU, or on a real one.
  enum class Where { here, other, cuda };
  std::vector<Block> some_blocks(const Case& the, int me, Where where, std::vector<Tensor>& all);

  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  // Adds the blocks of the last group to those of the others.
  void add_blocks(std::vector<Block>& blocks, const Groups& groups, const Case& the, bool undivided,
                  const std::shared_ptr<CudaDevice>& gpu);

 private:
  std::size_t number(const char* name) {
    return reinterpret_cast<std::size_t (*)()>(dlsym(library_, name))();
  }

  Folder cache_;
  void* library_ = nullptr;
};

// Parameters of these shapes, which differ between workers.
inline std::vector<Tensor> some_parameters(const std::vector<std::vector<std::int64_t>>& shapes, int me,
                                           at::ScalarType type, at::Device place) {
  const c10::AutoGradMode no_gradient(false);
  std::vector<Tensor> all;
  for (const auto& shape : shapes) {
    const Tensor values = at::arange(c10::multiply_integers(shape), at::kFloat) + 100.0 * me;
    all.push_back(values.sin().to(type).to(place).view(shape).set_requires_grad(true));
  }
  return all;
}

inline void OtherDevice::add_blocks(std::vector<Block>& blocks, const Groups& groups, const Case& the,
                                    bool undivided, const std::shared_ptr<CudaDevice>& gpu) {
  const std::size_t first = blocks.size();
  append_blocks(blocks, groups, groups.size() - 1, 1, the.wire, undivided);
  for (std::size_t b = first; b < blocks.size(); ++b) {
    blocks[b].keep(rule_states(the.rule));
    if (gpu) blocks[b].on_device = gpu->passes();
  }
}

// More than one block, of unaligned sizes. `all`: the parameters.
inline std::vector<Block> OtherDevice::some_blocks(const Case& the, int me, Where where,
                                                   std::vector<Tensor>& all) {
  const at::Device place(where == Where::cuda ? at::kCUDA : at::kCPU, where == Where::cuda ? 0 : -1);
  all = some_parameters({{3}, {5000}, {17}, {66'000}, {4097}}, me, the.type, place);
  std::vector<Block> blocks;
  add_blocks(blocks, {torch::optim::OptimizerParamGroup(all)}, the, /*undivided=*/false,
             where == Where::other ? device() : nullptr);
  EXPECT_GE(blocks.size(), 2u);
  return blocks;
}

// One parameter has no gradient in some steps.
inline void give_gradients(std::vector<Tensor>& all, int me, int t) {
  for (std::size_t k = 0; k < all.size(); ++k) {
    Tensor& g = all[k].mutable_grad();
    if (g.defined()) g.zero_();  // as zero_grad() does; the update must not see it
    if (k == 2 && t % 2 == 1) {
      g.reset();
    } else {
      g = all[k] - centre(me, t);
    }
  }
}

inline After bytes_after(const std::vector<Tensor>& all, const std::vector<Block>& blocks) {
  After after;
  for (const Tensor& p : all) after.push_back(bytes_in(p));
  for (const Block& block : blocks) {
    for (const Segment& s : block.segments) {
      if (s.master.defined()) after.push_back(bytes_in(s.master));
    }
    for (const Tensor& state : block.states) after.push_back(bytes_in(state));
    const std::vector<int> grid = block.grid.state();
    const auto exponents = std::as_bytes(std::span(grid));
    after.emplace_back(exponents.begin(), exponents.end());
  }
  return after;
}

// Adds the scheme's state to `after`.
class BytesOfState final : public StateVisitor {
 public:
  BytesOfState(std::vector<Block>& blocks, After& after) : blocks_(blocks), after_(after) {}
  void values(const std::string&, Fresh, const Access& access) override {
    for (Block& block : blocks_)
      access(block, [&](const Tensor& values) { after_.push_back(bytes_in(values)); });
  }
  void numbers(const std::string&, const Numbers& numbers) override {
    if (with_numbers) after_.push_back(bytes_in(at::tensor(numbers.now)));
  }
  bool with_numbers = false;

 private:
  std::vector<Block>& blocks_;
  After& after_;
};

}  // namespace starling
