#include "starling/optim/pass.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/timeline.h"
#include "starling/kernels/update.h"
#include "starling/optim/direction.h"
#include "starling/optim/rule_step.h"

namespace starling {
namespace {

constexpr std::int64_t kGrain = 1 << 15;    // elements per thread, at least
constexpr std::size_t kStreamed = 1 << 20;  // bytes; larger wires are written past the caches
// threads take whole units, so that no two of them share a byte of int4
constexpr std::int64_t kUnit = 64;

double sum_of_squares(const void* values, Wire format, std::int64_t n) {
  const kernels::Kernels& kernels = kernels::best_kernels();
  std::vector<double> sums(static_cast<std::size_t>((n + kGrain - 1) / kGrain));
  at::parallel_for(0, static_cast<std::int64_t>(sums.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = i * kGrain;
      sums[static_cast<std::size_t>(i)] = kernels.sum_of_squares(
          static_cast<const std::byte*>(values) + bytes_of(format, static_cast<std::size_t>(at)), format,
          static_cast<std::size_t>(std::min(kGrain, n - at)));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

std::span<const Arrival> finish(Exchange& exchange, const Block& block) {
  RECORD_USER_SCOPE("starling::finish");
  if (block.on_device) block.on_device->wait();
  return exchange.finish(block.index);
}

void start(Exchange& exchange, const Block& block, bool finite) {
  RECORD_USER_SCOPE("starling::start");
  exchange.start(block.index, finite);
}

Then then_start(Exchange& exchange, const Block& block) {
  return [exchange = &exchange, block = &block](bool finite) { start(*exchange, *block, finite); };
}

namespace {

void check_place(const Block& block, const Segment& s) {
  if (s.parameter.device() == block.device) return;
  throw UsageError(fmt::format(
      "a parameter [{}] was on {} when the optimizer was made and is on {} now: it must stay there",
      fmt::join(s.parameter.sizes(), ", "), block.device.str(), s.parameter.device().str()));
}

void check_whole(const Rule& rule, const Segment& s) {
  if (takes_whole(rule, s.parameter) == s.whole) return;
  throw UsageError(fmt::format("a parameter [{}] was {} when the optimizer was made: its use_muon must stay",
                               fmt::join(s.parameter.sizes(), ", "),
                               s.whole ? "updated as a matrix" : "not updated as a matrix"));
}

// No rule: the pass reads no gradient.
void check_segment(const Block& block, const Segment& s, const Rule* rule) {
  check_place(block, s);
  if (rule == nullptr) return s.check();
  check_whole(*rule, s);
  s.check_gradient();
}

// update(), with the grid chosen.
class Pass {
 public:
  Pass(Block& block, const Rule& rule, std::span<const Arrival> arrived, const Outgoing& outgoing,
       std::optional<float> scale)
      : block_(block), arrived_(arrived), outgoing_(outgoing), scale_(scale.value_or(1)) {
    updates_.swap(spare());
    updates_.reserve(block.segments.size());
    std::int64_t steps = 0;
    kernels::Step step;  // the same for most segments
    for (Segment& s : block.segments) {
      if (!scale) check_segment(block, s, nullptr);  // else check_pass() has done it
      at::Tensor keep;
      const void* g = scale ? s.gradient(keep) : nullptr;
      const std::int64_t taken = s.steps + (g != nullptr ? 1 : 0);
      const kernels::Parameters x = s.values();
      std::optional<MatrixDirection> moves;
      if (s.whole && g != nullptr) {
        moves = direction(rule, keep, scale_, block.state_of(s, 0));
        keep = moves->along;
        g = keep.const_data_ptr();
      }
      const bool clears = block.clears && g != nullptr && keep.is_same(s.parameter.grad());
      void* const cleared = clears ? s.mutable_gradient() : nullptr;
      if (clears) g = cleared;
      if (const auto t = std::max<std::int64_t>(taken, 1); t != steps) step = rule_step(rule, steps = t);
      updates_.push_back({.segment = &s,
                          .steps = taken,
                          .begin = s.offset,
                          .end = s.offset + s.length,
                          .step = moves ? matrix_step(rule, s.parameter) : step,
                          .x = x,
                          .as_sent = s.still_in(x.values),
                          .state = s.whole ? -1 : s.state,
                          .g = g,
                          .scale = moves ? 1 : scale_,
                          .cleared = cleared,
                          .keep = std::move(keep),
                          .moves = std::move(moves)});
    }
    for (std::size_t k = 0; k < block.states.size(); ++k)
      states_[k] = block.states[k].mutable_data_ptr<float>();
  }

  ~Pass() {
    updates_.clear();
    updates_.swap(spare());
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // Returns whether the parameters are finite. `grid` follows what is mixed.
  bool run(Grid* grid) {
    mark();
    Seen seen = nothing();
    std::mutex mutex;  // guards `seen` against other threads
    const std::int64_t units = (block_.length + kUnit - 1) / kUnit;
    at::parallel_for(0, units, kGrain / kUnit, [&](std::int64_t first, std::int64_t last) {
      Seen share = nothing();
      each_stretch(first * kUnit, std::min(last * kUnit, block_.length), &share.sum, share.measured.data(),
                   [&](const auto&... arguments) {
                     const bool finite = kernels::update(arguments...);
                     share.finite = share.finite && finite;
                   });
      const std::lock_guard lock(mutex);
      seen.add(share);
    });
    use_results(static_cast<std::size_t>(block_.length), grid, arrived_, outgoing_, seen);
    return seen.finite;
  }

  // Puts the pass into the streams of the block's device. When it is over, the device's thread
  // calls then(finite). The grid must live until then, the block need not.
  static void enqueue(Block& block, Grid* grid, const Rule& rule, std::span<const Arrival> arrived,
                      const Outgoing& outgoing, std::optional<float> scale, Then then) {
    OnDevice& device = *block.on_device;
    const auto length = static_cast<std::size_t>(block.length);
    const OnDevice::There there = device.begin(arrived, outgoing, length);
    const Pass pass(block, rule, there.arrived, there.outgoing, scale);
    pass.each_stretch(0, block.length, there.sum, there.measured,
                      [&](const auto&... arguments) { device.add(arguments...); });
    device.launch(
        [length, grid, arrived = there.arrived, outgoing, then = std::move(then)](const Seen& seen) {
          use_results(length, grid, arrived, outgoing, seen);
          then(seen.finite);
        });
    pass.mark();
  }

 private:
  using Seen = OnDevice::Seen;  // by one thread in its share of the block, or by all threads
  struct SegmentUpdate {        // of one segment, in this pass
    Segment* segment;
    std::int64_t steps;       // with this one
    std::int64_t begin, end;  // in the block
    kernels::Step step;
    kernels::Parameters x;
    const void* as_sent;  // a block that has x without a change, or null
    std::int64_t state;   // -1: a whole matrix, whose step takes no state
    const void* g;        // the gradient, or a whole matrix's direction
    float scale;          // of g
    void* cleared;        // g, or null: it is not cleared
    at::Tensor keep;
    std::optional<MatrixDirection> moves;  // of a whole matrix
  };
  // The memory of this thread's last pass. An allocation of this size makes glibc tidy up its heap,
  // which takes a tenth of a small model's step.
  static std::vector<SegmentUpdate>& spare() {
    thread_local std::vector<SegmentUpdate> all;
    return all;
  }
  Seen nothing() const { return {.measured = std::vector<kernels::Measured>(arrived_.size())}; }

  // Notes in the segments what this pass does. It comes when the pass can no longer be refused, or
  // fail for want of memory.
  void mark() const {
    for (const SegmentUpdate& update : updates_) {
      Segment& s = *update.segment;
      s.steps = update.steps;
      s.cleared = update.cleared != nullptr;
      if (update.moves) update.moves->move_momentum();
      if (update.g != nullptr || !arrived_.empty()) s.mark_changed();
      if (outgoing_.values != nullptr && outgoing_.wire == Wire::fp32 && update.x.format == Wire::fp32)
        s.mark_sent(update.x.values, outgoing_.values);
    }
  }

  // The end of the stretch from `at` in which each mask, of arrivals and of what is sent, chooses
  // all values or none.
  std::int64_t stretch_end(std::int64_t at) const {
    const auto from = static_cast<std::size_t>(at);
    std::size_t end = std::min(static_cast<std::size_t>(block_.length), outgoing_.mask.stretch_end(from));
    for (const Arrival& a : arrived_) end = std::min(end, a.mine.mask.stretch_end(from));
    return static_cast<std::int64_t>(end);
  }

  // Calls f with the arguments of Kernels::update for each uniform stretch from begin to end. The
  // kernel adds to `sum`, and to `measured` for each arrival.
  template <class F>
  void each_stretch(std::int64_t begin, std::int64_t end, std::uint32_t* sum, kernels::Measured* measured,
                    const F& f) const {
    std::vector<kernels::Mix> mixes;
    auto segment = std::partition_point(updates_.begin(), updates_.end(),
                                        [&](const SegmentUpdate& s) { return s.end <= begin; });
    for (; segment != updates_.end() && segment->begin < end; ++segment) {
      const std::int64_t last = std::min(end, segment->end);
      for (std::int64_t at = std::max(begin, segment->begin), next = 0; at < last; at = next) {
        next = std::min(last, stretch_end(at));
        one_stretch(*segment, at, next, sum, measured, mixes, f);
      }
    }
  }

  // `mixes`: reused memory.
  template <class F>
  void one_stretch(const SegmentUpdate& segment, std::int64_t begin, std::int64_t end, std::uint32_t* sum,
                   kernels::Measured* measured, std::vector<kernels::Mix>& mixes, const F& f) const {
    const auto from = static_cast<std::size_t>(begin);  // in the block
    const auto within = static_cast<std::size_t>(begin - segment.begin);
    mixes.clear();
    for (std::size_t j = 0; j < arrived_.size(); ++j) {
      const Arrival& a = arrived_[j];
      if (!a.mine.mask.chooses(from)) continue;
      const void* const sent = a.mine.bytes().data();
      const bool is_x = sent == nullptr || sent == segment.as_sent;
      mixes.push_back(
          {a.weight, a.theirs.values(from), is_x ? own(segment, within) : a.mine.values(from), measured + j});
    }
    const std::size_t skipped = bytes_of(segment.x.format, within);
    kernels::Gradient g{nullptr, segment.scale};
    if (segment.g != nullptr) g.values = static_cast<const std::byte*>(segment.g) + skipped;
    if (segment.cleared != nullptr) g.cleared = static_cast<std::byte*>(segment.cleared) + skipped;
    const auto state = [&](std::size_t k) {
      return states_[k] == nullptr || segment.state < 0 ? nullptr : states_[k] + segment.state + within;
    };
    kernels::WireBlock sent = outgoing_;
    sent.stream = bytes_of(outgoing_.wire, sent_values_) >= kStreamed;
    sent.sum = sum;
    sent.values = nullptr;
    if (outgoing_.values != nullptr && outgoing_.mask.chooses(from))
      sent.values = static_cast<std::byte*>(outgoing_.values) +
                    bytes_of(outgoing_.wire, outgoing_.mask.chosen_of(from));
    f(segment.step, mixes, segment.x.from(within), g, kernels::RuleState{state(0), state(1), state(2)}, sent,
      static_cast<std::size_t>(end - begin));
  }

  static const float* own(const SegmentUpdate& segment, std::size_t n) {
    const kernels::Parameters x = segment.x.from(n);
    return x.master != nullptr ? x.master : static_cast<const float*>(x.values);
  }

  // Uses the kernel's results: writes the trailer of what is sent, and chooses the next block's
  // grid by the distance between the ends of each edge.
  static void use_results(std::size_t length, Grid* grid, std::span<const Arrival> arrived,
                          const Outgoing& outgoing, const Seen& seen) {
    if (outgoing.values != nullptr) {
      const std::span<std::byte> sent{static_cast<std::byte*>(outgoing.values),
                                      block_bytes(outgoing.wire, outgoing.mask.chosen_of(length))};
      set_trailer(sent, outgoing.wire, {outgoing.exponent, seen.sum});
    }
    if (grid == nullptr) return;
    Grid::Wanted wanted;
    for (std::size_t j = 0; j < arrived.size(); ++j) {
      const Arrival& a = arrived[j];
      if (a.mine.mask.chosen_of(length) > 0)
        wanted.add(a.mine.wire, a.theirs.trailer, a.mine.trailer, seen.measured[j]);
    }
    grid->follow(wanted);
  }

  Block& block_;
  const std::span<const Arrival> arrived_;
  const Outgoing& outgoing_;
  const float scale_;
  const std::size_t sent_values_ = outgoing_.mask.chosen_of(static_cast<std::size_t>(block_.length));
  std::vector<SegmentUpdate> updates_;
  std::array<float*, 3> states_{};
};

// One pass over the memory of a block on the CPU. Returns whether the parameters are finite.
bool pass_on_cpu(Block& block, Grid* grid, const Rule& rule, std::span<const Arrival> arrived,
                 const Outgoing& outgoing, std::optional<float> scale) {
  RECORD_USER_SCOPE("starling::update");
  const Timeline::Scope span(block.timeline, {.name = "mix + update", .block = block.index});
  return Pass(block, rule, arrived, outgoing, scale).run(grid);
}

// One pass on the block's device, CPU or GPU; calls then(finite) at its end.
void pass(Block& block, Grid* grid, const Rule& rule, std::span<const Arrival> arrived,
          const Outgoing& outgoing, std::optional<float> scale, Then then) {
  if (!block.on_device) return then(pass_on_cpu(block, grid, rule, arrived, outgoing, scale));
  RECORD_USER_SCOPE("starling::update");
  const Timeline::Scope span(block.timeline, {.name = "mix + update", .block = block.index});
  Pass::enqueue(block, grid, rule, arrived, outgoing, scale, std::move(then));
}

// The same, but waits for a GPU if something is sent. Returns whether the parameters are finite, as
// far as known.
bool pass(Block& block, Grid* grid, const Rule& rule, std::span<const Arrival> arrived,
          const Outgoing& outgoing, std::optional<float> scale) {
  if (!block.on_device) return pass_on_cpu(block, grid, rule, arrived, outgoing, scale);
  const auto finite = std::make_shared<bool>(true);
  pass(block, grid, rule, arrived, outgoing, scale, [finite](bool all) { *finite = all; });
  if (outgoing.values == nullptr) return true;  // not known yet
  block.on_device->wait();
  return *finite;
}

// The vector as a block, for one pass.
Block block_of(const Vector& v) {
  Block block{.length = v.values.numel()};
  block.device = v.values.device();
  block.on_device = v.passes;
  block.segments.push_back({.parameter = v.values, .length = block.length});
  return block;
}

// On the grid that earlier measurements have chosen.
Outgoing with_grid(Block& block, Outgoing outgoing) {
  if (outgoing.values == nullptr || !is_modular(outgoing.wire)) return outgoing;
  if (block.on_device) block.on_device->wait();
  outgoing.exponent = block.grid.next();
  return outgoing;
}

}  // namespace

void check_pass(const Block& block, const Rule* rule) {
  for (const Segment& s : block.segments) check_segment(block, s, rule);
}

bool update(Block& block, const Rule& rule, std::span<const Arrival> arrived, Outgoing outgoing,
            std::optional<float> scale) {
  return pass(block, &block.grid, rule, arrived, with_grid(block, outgoing), scale);
}

void update(Block& block, const Rule& rule, std::span<const Arrival> arrived, Outgoing outgoing,
            std::optional<float> scale, Then then) {
  pass(block, &block.grid, rule, arrived, with_grid(block, outgoing), scale, std::move(then));
}

bool mix(const Vector& v, std::span<const Arrival> arrived, const Outgoing& outgoing) {
  Block block = block_of(v);
  return pass(block, v.grid, Rule{}, arrived, outgoing, std::nullopt);
}

void mix(const Vector& v, std::span<const Arrival> arrived, const Outgoing& outgoing, Then then) {
  Block block = block_of(v);
  pass(block, v.grid, Rule{}, arrived, outgoing, std::nullopt, std::move(then));
}

std::vector<Arrival> uploaded(const Block& block, std::span<const Arrival> arrived) {
  if (block.on_device) return block.on_device->upload(arrived, static_cast<std::size_t>(block.length));
  return {arrived.begin(), arrived.end()};
}

Outgoing on_last_grid(const Block& block, Outgoing outgoing) {
  if (!is_modular(outgoing.wire)) return outgoing;
  if (block.on_device) block.on_device->wait();
  outgoing.exponent = block.grid.again();
  return outgoing;
}

bool write_again(Block& block, const Outgoing& outgoing) {
  return pass(block, &block.grid, Rule{}, {}, on_last_grid(block, outgoing), std::nullopt);
}

void update_and_send(Exchange& exchange, Block& block, const Rule& rule, std::span<const Arrival> arrived,
                     std::optional<float> scale) {
  update(block, rule, arrived, exchange.outgoing(block.index), scale, then_start(exchange, block));
}

void mix_and_send(Exchange& exchange, Block& block, std::span<const Arrival> arrived) {
  update_and_send(exchange, block, Rule{}, arrived, std::nullopt);
}

void send_again(Exchange& exchange, Block& block) {
  const bool finite = write_again(block, exchange.outgoing(block.index));
  start(exchange, block, finite);
}

bool mix(Block& block, std::span<const Arrival> arrived, const Outgoing& outgoing) {
  return update(block, Rule{}, arrived, outgoing, std::nullopt);
}

void settle(std::span<const Block> blocks) {
  for (const Block& block : blocks) {
    if (block.on_device) block.on_device->wait();
  }
}

namespace {

// Gradients on one device, with torch's own kernels.
double sum_of_squares(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return 0;
  const at::Tensor norms = at::stack(at::_foreach_norm(gradients, 2, at::kFloat)).to(at::kDouble);
  return norms.square().sum().item<double>();
}

}  // namespace

void clear_other_gradients(std::span<Block> blocks) {
  for (Block& block : blocks) {
    if (!block.clears) continue;
    for (Segment& s : block.segments) {
      if (!std::exchange(s.cleared, false) && s.parameter.grad().defined())
        s.parameter.mutable_grad().zero_();
    }
  }
}

double sum_of_squares(std::span<const Block> blocks) {
  double sum = 0;
  std::map<at::DeviceIndex, std::vector<at::Tensor>> on_gpus;
  for (const Block& block : blocks) {
    for (const Segment& s : block.segments) {
      s.check_gradient();
      at::Tensor keep;
      const void* const g = s.gradient(keep);
      if (g == nullptr) continue;
      if (block.device.is_cpu()) {
        sum += sum_of_squares(g, s.format, s.length);
      } else {
        on_gpus[block.device.index()].push_back(stretch(keep, s.begin, s.length));
      }
    }
  }
  for (const auto& [index, gradients] : on_gpus) sum += sum_of_squares(gradients);
  return sum;
}

}  // namespace starling
