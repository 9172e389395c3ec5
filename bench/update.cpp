// The speed of the update on one core. One AdamW step with one neighbour to mix with, beside
// torch's own in the same process: fused, and as single operations on lists of tensors ("foreach").
// Prints JSON.
//
//   bench-update [--parameters N] [--tensors N] [--repetitions N]
//
// The default is 32 Mi parameters in one tensor. torch's times depend on the size of a tensor:
// memory that each step frees and allocates (gradients; foreach's roots) costs page faults if it is
// large. Each repetition runs all of them in turn; times are medians. All start from the same
// numbers and must end at the same ones, else this fails.
//
//   triad_share      bytes per second that the formula must move (x, g, m, v and the neighbour's
//                    wire block are read; x, m, v and the next wire block written: 36 per
//                    parameter; the own wire block is x), as part of those of a triad with
//                    non-temporal stores (12 per parameter)
//   vs_torch_fused   time of lerp_ and _fused_adamw_, divided by ours; torch writes no wire block
//   vs_foreach       time of our whole step in operations on lists of tensors, divided by ours:
//                    mixing in difference form, torch.optim.AdamW(foreach=True), the wire block,
//                    and its norm to check that it is finite
//   vs_foreach_lerp  the same with lerp_ to mix and without a wire block, as in vs_torch_fused
//   rules            triad_share for each rule and number of neighbours
//   bf16             for parameters in bf16 with fp32 masters, which ours writes in the same pass
//                    (42 bytes per parameter); beside it torch on the masters: copy_ of the
//                    gradient to fp32, lerp_, _fused_adamw_, copy_ to bf16
// All but triad_share and rules include the time of set_to_none, in ours too.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "bench/measure.h"
#include "bench/triad.h"
#include "starling/optim/blocks.h"
#include "starling/optim/pass.h"
#include "starling/optim/rule_step.h"

namespace {

using at::Tensor;
using bench::median;
using bench::now;
using starling::Arrival;
using starling::Block;
using starling::Buffer;
using Json = nlohmann::ordered_json;

constexpr float kWeight = 0.5f;  // of the neighbour
const starling::AdamW kRule{.lr = 1e-3, .weight_decay = 0.01};

struct Size {
  std::int64_t tensors = 1;
  std::int64_t each = 32 << 20;  // parameters
  std::int64_t all() const { return tensors * each; }
};

std::vector<Tensor> random_tensors(const Size& size, std::uint64_t seed, double scale) {
  at::manual_seed(seed);
  std::vector<Tensor> all;
  for (std::int64_t i = 0; i < size.tensors; ++i) all.push_back(at::randn({size.each}).mul_(scale));
  return all;
}

// The neighbour's parameters in one tensor.
Tensor neighbour(const Size& size) {
  at::manual_seed(2);
  return at::randn({size.all()});
}

std::vector<Tensor> zeros(const std::vector<Tensor>& like) {
  std::vector<Tensor> all;
  for (const Tensor& t : like) all.push_back(at::zeros_like(t));
  return all;
}

// The state of a training loop after backward(): gradients in fresh memory.
void set_gradients(const std::vector<Tensor>& x, const std::vector<Tensor>& g) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i].mutable_grad() = g[i].clone();
}
std::vector<Tensor> gradients(const std::vector<Tensor>& x) {
  std::vector<Tensor> all;
  for (const Tensor& p : x) all.push_back(p.grad());
  return all;
}
void set_to_none(const std::vector<Tensor>& x) {
  for (const Tensor& p : x) p.mutable_grad().reset();
}

std::vector<Tensor> as(at::ScalarType type, std::vector<Tensor> all) {
  for (Tensor& t : all) t = t.to(type);
  return all;
}

class Competitor {
 public:
  explicit Competitor(const Size& size, at::ScalarType type = at::kFloat)
      : x(as(type, random_tensors(size, 1, 1))) {
    for (Tensor& p : x) p.set_requires_grad(true);
  }
  virtual ~Competitor() = default;
  virtual void step() = 0;
  virtual std::vector<Tensor> exact() { return x; }  // the masters, if there are any
  std::vector<Tensor> x;
};

// Blocks, buffers and calls as in Optimizer::step() under cta.
class Ours final : public Competitor {
 public:
  Ours(const Size& size, starling::Rule rule, int neighbours, at::ScalarType type = at::kFloat)
      : Competitor(size, type), rule_(rule) {
    const std::vector<torch::optim::OptimizerParamGroup> groups{torch::optim::OptimizerParamGroup(x)};
    starling::append_blocks(blocks_, groups, 0, 25 << 20);
    for (Block& block : blocks_) block.keep(starling::rule_states(rule));
    std::size_t begin = 0;
    for (const Block& block : blocks_) {
      const auto length = static_cast<std::size_t>(block.length);
      auto& arrived = arrived_.emplace_back();
      for (int j = 0; j < neighbours; ++j) {
        arrived.push_back({.rank = j,
                           .weight = kWeight / static_cast<float>(neighbours),
                           .theirs = sent(copy(neighbour(size), begin, length)),
                           .mine = sent(copy(at::cat(x).to(at::kFloat), begin, length))});
      }
      for (auto* const buffers : {&free_, &sent_})
        buffers->push_back(std::make_shared<Buffer>(length * sizeof(float)));
      begin += length;
    }
  }
  void step() override {
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (!starling::update(blocks_[b], rule_, arrived_[b], starling::floats_of(*free_[b]).data()))
        throw std::runtime_error("not finite");
      std::swap(free_[b], sent_[b]);
      for (Arrival& a : arrived_[b]) a.mine = sent(sent_[b]);
    }
  }
  std::vector<Tensor> exact() override {
    const starling::Masters masters = starling::with_masters(blocks_);
    std::vector<Tensor> all;
    for (const Tensor& p : x) {
      const auto found = masters.find(p.unsafeGetTensorImpl());
      all.push_back(found == masters.end() ? p : starling::joined_masters(found->second));
    }
    return all;
  }

 private:
  static std::shared_ptr<Buffer> copy(const Tensor& flat, std::size_t begin, std::size_t length) {
    const float* const from = flat.const_data_ptr<float>() + begin;
    auto buffer = std::make_shared<Buffer>(length * sizeof(float));
    std::copy(from, from + length, starling::floats_of(*buffer).data());
    return buffer;
  }
  static starling::SentBlock sent(const std::shared_ptr<Buffer>& buffer) {
    return {starling::payload_of(buffer), starling::Wire::fp32};
  }
  starling::Rule rule_;
  std::vector<Block> blocks_;
  std::vector<std::vector<Arrival>> arrived_;
  std::vector<std::shared_ptr<Buffer>> free_,
      sent_;  // each block's: the one that the next step writes, and the one of the last step
};

class Fused final : public Competitor {
 public:
  explicit Fused(const Size& size, at::ScalarType type = at::kFloat)
      : Competitor(size, type),
        narrow_(type != at::kFloat),
        master_(as(at::kFloat, x)),
        theirs_(neighbour(size).split(size.each)),
        m_(zeros(master_)),
        v_(zeros(master_)) {
    for (std::size_t i = 0; i < x.size(); ++i) t_.push_back(at::zeros({}));
    if (narrow_) g_ = zeros(master_);
  }
  void step() override {
    if (narrow_) at::_foreach_copy_(g_, gradients(x));
    for (std::size_t i = 0; i < x.size(); ++i) master_[i].lerp_(theirs_[i], kWeight);
    at::_foreach_add_(t_, 1);
    at::_fused_adamw_(master_, narrow_ ? g_ : gradients(x), m_, v_, {}, t_, kRule.lr, kRule.betas[0],
                      kRule.betas[1], kRule.weight_decay, kRule.eps, false, false);
    if (narrow_) at::_foreach_copy_(x, master_);
  }
  std::vector<Tensor> exact() override { return master_; }

 private:
  const bool narrow_;
  std::vector<Tensor> master_;  // x itself if that is fp32
  std::vector<Tensor> theirs_, m_, v_, t_, g_;
};

// _multi_tensor_adamw of torch/optim/adam.py. `whole`: with all the rest of our step around it.
class Foreach final : public Competitor {
 public:
  Foreach(const Size& size, bool whole)
      : Competitor(size), theirs_(neighbour(size).split(size.each)), m_(zeros(x)), v_(zeros(x)) {
    for (const Tensor& p : x) {
      if (whole) mine_.push_back(p.detach().clone()), sent_.push_back(at::zeros_like(p));
    }
  }
  void step() override {
    ++t_;
    const std::vector<Tensor> g = gradients(x);
    if (mine_.empty()) {
      at::_foreach_lerp_(x, theirs_, kWeight);
    } else {
      at::_foreach_add_(x, at::_foreach_sub(theirs_, mine_), kWeight);
    }
    at::_foreach_mul_(x, 1 - kRule.lr * kRule.weight_decay);
    at::_foreach_lerp_(m_, g, 1 - kRule.betas[0]);
    at::_foreach_mul_(v_, kRule.betas[1]);
    at::_foreach_addcmul_(v_, g, g, 1 - kRule.betas[1]);
    std::vector<Tensor> root = at::_foreach_sqrt(v_);
    at::_foreach_div_(root, std::sqrt(1 - std::pow(kRule.betas[1], t_)));
    at::_foreach_add_(root, kRule.eps);
    at::_foreach_addcdiv_(x, m_, root, -kRule.lr / (1 - std::pow(kRule.betas[0], t_)));
    if (mine_.empty()) return;
    at::_foreach_copy_(sent_, x);
    for (const Tensor& norm : at::_foreach_norm(sent_)) {
      if (!std::isfinite(norm.item<float>())) throw std::runtime_error("not finite");
    }
  }

 private:
  std::vector<Tensor> theirs_, m_, v_, mine_, sent_;
  int t_ = 0;
};

double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

// The bytes per parameter that a step must move. With a master, the master is read and written
// beside a parameter and a gradient of 2 bytes. The sent block is then read too; otherwise it is x.
int bytes(const starling::Rule& rule, int neighbours, bool master = false) {
  const int reads = 2 + starling::rule_states(rule) + neighbours + (master && neighbours > 0 ? 1 : 0);
  const int writes = 2 + starling::rule_states(rule);
  return 4 * (reads + writes) + (master ? 2 : 0);
}

struct Triad {
  explicit Triad(std::int64_t n) : a(at::ones({n})), b(at::ones({n})), c(at::ones({n})) {}
  double gigabytes_per_second() {
    const double begin = now();
    bench::triad(a.const_data_ptr<float>(), b.const_data_ptr<float>(), 0.5f, c.mutable_data_ptr<float>(),
                 static_cast<std::size_t>(a.numel()));
    return 12e-9 * static_cast<double>(a.numel()) / (now() - begin);
  }
  Tensor a, b, c;
};

using Competitors = std::map<std::string, std::unique_ptr<Competitor>>;

struct Times {
  std::map<std::string, std::vector<double>> seconds;
  std::vector<double> alone;      // ours, without set_to_none
  std::vector<double> bandwidth;  // of the triad
};

// Measures all in turn, after a warm-up that proves that all do the same as "starling".
Times measure(Competitors& all, const std::vector<Tensor>& g, const Size& size, std::int64_t repetitions) {
  Triad triad(size.all());
  Times times;
  for (std::int64_t r = 0; r <= repetitions; ++r) {
    for (auto& [name, competitor] : all) {
      set_gradients(competitor->x, g);
      const double begin = now();
      competitor->step();
      if (r > 0 && name == "starling") times.alone.push_back(now() - begin);
      set_to_none(competitor->x);
      if (r > 0) times.seconds[name].push_back(now() - begin);
    }
    if (r == 0) {
      for (auto& [name, competitor] : all) {
        const double difference = largest_difference(all["starling"]->exact(), competitor->exact());
        if (!(difference < 1e-5))
          throw std::runtime_error("starling and " + name + " differ by " + std::to_string(difference));
      }
    }
    const double speed = triad.gigabytes_per_second();
    if (r > 0) times.bandwidth.push_back(speed);
  }
  return times;
}

Json compare(const Size& size, std::int64_t repetitions) {
  Competitors all;
  all["starling"] = std::make_unique<Ours>(size, kRule, 1);
  all["torch_fused"] = std::make_unique<Fused>(size);
  all["foreach"] = std::make_unique<Foreach>(size, true);
  all["foreach_lerp"] = std::make_unique<Foreach>(size, false);
  Times times = measure(all, random_tensors(size, 3, 0.01), size, repetitions);
  const double ours = median(times.seconds["starling"]), line = median(times.bandwidth);
  const double moved = 1e-9 * bytes(kRule, 1) * static_cast<double>(size.all()) / median(times.alone);
  return {{"triad_share", moved / line},
          {"vs_torch_fused", median(times.seconds["torch_fused"]) / ours},
          {"vs_foreach", median(times.seconds["foreach"]) / ours},
          {"vs_foreach_lerp", median(times.seconds["foreach_lerp"]) / ours},
          {"triad_gigabytes_per_second", line},
          {"starling_gigabytes_per_second", moved},
          {"starling_ms", 1e3 * ours},
          {"torch_fused_ms", 1e3 * median(times.seconds["torch_fused"])},
          {"foreach_ms", 1e3 * median(times.seconds["foreach"])},
          {"foreach_lerp_ms", 1e3 * median(times.seconds["foreach_lerp"])}};
}

Json compare_narrow(const Size& size, std::int64_t repetitions) {
  Competitors all;
  all["starling"] = std::make_unique<Ours>(size, kRule, 1, at::kBFloat16);
  all["torch_fused"] = std::make_unique<Fused>(size, at::kBFloat16);
  Times times = measure(all, as(at::kBFloat16, random_tensors(size, 3, 0.01)), size, repetitions);
  const double ours = median(times.seconds["starling"]), theirs = median(times.seconds["torch_fused"]);
  const double moved = 1e-9 * bytes(kRule, 1, true) * static_cast<double>(size.all()) / median(times.alone);
  return {{"triad_share", moved / median(times.bandwidth)},
          {"vs_torch_fused", theirs / ours},
          {"starling_ms", 1e3 * ours},
          {"torch_fused_ms", 1e3 * theirs}};
}

Json rules(const Size& size, std::int64_t repetitions) {
  const std::vector<std::tuple<std::string, starling::Rule, int>> cases{
      {"SGD", starling::SGD{.momentum = 0.9}, 1},
      {"AdamW", kRule, 0},
      {"AdamW", kRule, 1},
      {"AdamW", kRule, 2},
      {"AdamW", kRule, 4},
      {"AccumAdamW", starling::AccumAdamW{}, 1}};
  const std::vector<Tensor> g = random_tensors(size, 3, 0.01);
  Triad triad(size.all());
  Json table = Json::array();
  for (const auto& [name, rule, neighbours] : cases) {
    Ours ours(size, rule, neighbours);
    set_gradients(ours.x, g);
    std::vector<double> seconds, bandwidth;
    for (std::int64_t r = 0; r <= repetitions; ++r) {
      const double begin = now();
      ours.step();
      const double end = now(), speed = triad.gigabytes_per_second();
      if (r > 0) seconds.push_back(end - begin), bandwidth.push_back(speed);
    }
    const double moved = 1e-9 * bytes(rule, neighbours) * static_cast<double>(size.all()) / median(seconds);
    table.push_back({{"rule", name},
                     {"neighbours", neighbours},
                     {"bytes_per_parameter", bytes(rule, neighbours)},
                     {"ms", 1e3 * median(seconds)},
                     {"gigabytes_per_second", moved},
                     {"triad_share", moved / median(bandwidth)}});
  }
  return table;
}

int run(int argc, char** argv) {
  Size size;
  std::int64_t repetitions = 15;
  const std::map<std::string, std::pair<std::int64_t*, std::int64_t>> known{
      {"--parameters", {&size.each, 1024}},
      {"--tensors", {&size.tensors, 1}},
      {"--repetitions", {&repetitions, 1}}};
  for (int i = 1; i < argc; i += 2) {
    const auto option = known.find(argv[i]);
    const std::int64_t value = i + 1 < argc ? std::atoll(argv[i + 1]) : 0;
    if (option == known.end() || value < option->second.second) {
      std::fprintf(stderr,
                   "bench-update: '%s %s' is not allowed: --parameters N (1024 or more), --tensors N, "
                   "--repetitions N\n",
                   argv[i], i + 1 < argc ? argv[i + 1] : "");
      return 2;
    }
    *option->second.first = value;
  }
  size.each = size.each / size.tensors / 16 * 16;
  const c10::AutoGradMode no_gradient(false);
  at::set_num_threads(1);
  Json result = compare(size, repetitions);
  result["isa"] = starling::kernels::best_kernels().isa;
  result["parameters"] = size.all();
  result["tensors"] = size.tensors;
  result["repetitions"] = repetitions;
  result["rules"] = rules(size, repetitions);
  result["bf16"] = compare_narrow(size, repetitions);
  std::puts(result.dump(2).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-update: error: %s\n", error.what());
    return 1;
  }
}
