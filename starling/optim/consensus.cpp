// The average model, while a scope lasts.
//
//   mean      1/n Sum_i x_i, exact, over the edges (exchange/average.h)
//   distance  sqrt(1/n Sum_i |x_i - mean|^2 / d), d the number of parameters
//
// For a parameter in bf16 or fp16, x is its master, and the parameter is the mean rounded. If the
// scheme has weights (Scheme::weights()), the parameters are z, and x = w z. The mean is then the
// mean of x divided by the mean of w. The distance is that of z.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/agreement.h"
#include "starling/optim/average.h"
#include "starling/optim/engine.h"
#include "starling/optim/pass.h"

namespace starling {
namespace {

// Weighs all parameters, which are one vector of floats: averages z times its block's w, and w.
class Weighing {
 public:
  // `begins`: the first index of each parameter (its TensorImpl).
  Weighing(const std::vector<Block>& blocks, const std::vector<double>& weights,
           const std::unordered_map<const void*, std::size_t>& begins)
      : blocks_(blocks), weights_(weights.begin(), weights.end()), begins_(begins) {}

  void before(std::vector<float>& flat) const {
    each(flat, [&](float& z, std::size_t b) { z *= weights_[b]; });
    flat.insert(flat.end(), weights_.begin(), weights_.end());
  }
  void after(std::vector<float>& flat) const {
    const std::vector<float> means(flat.end() - static_cast<std::ptrdiff_t>(blocks_.size()), flat.end());
    flat.resize(flat.size() - blocks_.size());
    each(flat, [&](float& x, std::size_t b) { x /= means[b]; });
  }

 private:
  template <class F>
  void each(std::vector<float>& flat, const F& f) const {
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      for (const Segment& s : blocks_[b].segments) {
        float* const values = flat.data() + begins_.at(s.parameter.unsafeGetTensorImpl()) + s.begin;
        for (std::int64_t k = 0; k < s.length; ++k) f(values[k], b);
      }
    }
  }
  const std::vector<Block>& blocks_;
  const std::vector<float> weights_;
  const std::unordered_map<const void*, std::size_t>& begins_;
};

// They may be others than at the start.
void check_buffers(auto& engine) {
  Terms terms;
  add_tensors(terms, "buffer", engine.buffers);
  engine.on_edges([&](Exchange& edges) { agree(edges, terms); });
}

at::TensorOptions on_cpu(at::ScalarType type) { return at::TensorOptions(type).device(at::kCPU); }

}  // namespace

Operation::Operation(Optimizer& optimizer) : optimizer_(optimizer) { optimizer_.engine_->begin_operation(); }

Operation::~Operation() { optimizer_.engine_->end_operation(); }

struct Consensus::State {
  State(Optimizer& optimizer, auto& engine)
      : operation(std::in_place, optimizer),
        optimizer(optimizer),
        scheme(*engine.scheme),
        log(optimizer.world().log),
        averages(engine.averages) {
    optimizer.wait_for_all();
    engine.stand_still();
    ++averages;
  }
  // Also runs if an average throws.
  ~State() {
    if (!keep) put_back();
    --averages;
    scheme.resume();
  }
  void put_back() const;

  std::optional<Operation> operation;  // of the constructor's averages
  Optimizer& optimizer;
  Scheme& scheme;
  const Log log;
  int& averages;  // of the optimizer
  std::vector<std::pair<at::Tensor, at::Tensor>>
      own;  // a parameter, its masters, or a buffer; and this worker's values of it
  int workers = 1, first = 0;
  double distance = 0;
  bool keep = false;
};

Consensus::Consensus(Optimizer& optimizer) : state_(std::make_unique<State>(optimizer, *optimizer.engine_)) {
  const c10::AutoGradMode no_gradient(false);
  auto& engine = *optimizer.engine_;
  check_buffers(engine);
  const Masters masters = with_masters(engine.blocks);
  const auto remember = [this](const at::Tensor& tensor) {
    state_->own.emplace_back(tensor, tensor.clone());
  };
  std::vector<at::Tensor> reals;                        // masters stand for their parameter
  std::unordered_map<const void*, std::size_t> begins;  // of the parameters in `flat`
  std::size_t numbers = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      remember(parameter);
      begins[parameter.unsafeGetTensorImpl()] = numbers;
      numbers += static_cast<std::size_t>(parameter.numel());
      const auto found = masters.find(parameter.unsafeGetTensorImpl());
      reals.push_back(found == masters.end() ? parameter : joined_masters(found->second));
      if (found == masters.end()) continue;
      for (const Segment* const segment : found->second) remember(segment->master);
    }
  }
  for (const at::Tensor& buffer : engine.buffers) remember(buffer);

  // All parameters as one vector of floats, each in its own memory order. The order is the same on
  // all workers.
  std::vector<float> flat;
  for (const at::Tensor& real : reals) {
    const at::Tensor dense = at::empty_like(real, on_cpu(at::kFloat)).copy_(real);
    flat.insert(flat.end(), dense.const_data_ptr<float>(), dense.const_data_ptr<float>() + dense.numel());
  }
  const std::size_t d = flat.size();
  const std::vector<float> mine = flat;
  const std::vector<double> weights = engine.scheme->weights();
  const bool weighted = !weights.empty();
  const Weighing weighing(engine.blocks, weights, begins);
  if (weighted) weighing.before(flat);
  std::set<int> who;
  const auto mean_of_all = [&](std::span<float> all) {
    who = engine.on_edges([&](Exchange& edges) { return edges.average(all); });
    return !who.empty();
  };
  std::optional<bool> is_apart;
  if (engine.options.jump_guard > 0) is_apart = !optimizer.counts(/*waits=*/true);
  const auto [alone, finite, counts, share] = average_finite(flat, mean_of_all, is_apart);
  if (!counts)
    state_->log(Level::warning,
                fmt::format("consensus: this worker's parameters {}{}",
                            finite ? "are far from most neighbours'" : "are not finite",
                            alone ? "" : ": it gets the average of the others, who go on without it"));
  if (share == 0) throw Error("consensus: no worker's parameters are finite");
  const std::size_t took_part = std::max(who.size(), std::size_t{1});  // without the others: this one
  state_->workers = static_cast<int>(std::lround(share * static_cast<float>(took_part)));
  state_->first = alone ? -1 : *who.begin();
  if (weighted && !alone) weighing.after(flat);
  if (alone) flat = mine;
  double square = 0;
  for (std::size_t k = 0; k < d && counts; ++k)
    square += (double{mine[k]} - flat[k]) * (double{mine[k]} - flat[k]);
  float mean_square = static_cast<float>(square / static_cast<double>(d));
  optimizer.average({&mean_square, 1});
  mean_square /= share;
  state_->distance = std::sqrt(double{mean_square});
  std::size_t offset = 0;
  for (at::Tensor& tensor : reals) {
    at::Tensor mean = at::empty_like(tensor, on_cpu(at::kFloat));
    std::copy_n(flat.data() + offset, mean.numel(), mean.mutable_data_ptr<float>());
    offset += static_cast<std::size_t>(mean.numel());
    tensor.copy_(mean);
  }
  std::size_t k = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& mean = reals[k++];
      const auto found = masters.find(parameter.unsafeGetTensorImpl());
      if (found == masters.end()) continue;
      set_masters(found->second, mean);
      parameter.copy_(mean);
    }
  }

  // A worker whose parameters do not count gives no buffers either.
  if (!engine.buffers.empty())
    average(*engine.exchange, engine.buffers, {.what = "buffer", .log = state_->log, .counts = counts});
  state_->operation.reset();
}

void Consensus::State::put_back() const {
  const c10::AutoGradMode no_gradient(false);
  try {
    for (const auto& [tensor, values] : own) tensor.copy_(values);
  } catch (const std::exception& error) {
    // For example, the GPU has failed. The caller must see the first failure.
    log(Level::warning,
        fmt::format("consensus: this worker's own parameters cannot be put back: {}", error.what()));
  }
}

Consensus::~Consensus() = default;

int Consensus::workers() const { return state_->workers; }
int Consensus::first() const { return state_->first; }
double Consensus::distance() const { return state_->distance; }

void Consensus::keep() {
  keep([this] { state_->optimizer.renew_outer(); }, &Scheme::restart);
}

void Consensus::keep(const std::function<void()>& change, const std::function<void(Scheme&)>& go_on) {
  const c10::AutoGradMode no_gradient(false);
  state_->keep = true;
  change();
  state_->optimizer.engine_->set_grids({});  // those of before the average would be too coarse
  state_->optimizer.go_on(state_->optimizer.position(), go_on);
}

}  // namespace starling
