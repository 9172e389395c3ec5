#include "starling/optim/schemes/pairs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include "starling/core/whole.h"
#include "starling/kernels/update.h"
#include "starling/optim/schemes/weights.h"

namespace starling {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements per thread, at least

// Copies of the parameters, or of their masters, on the blocks' devices.
std::vector<at::Tensor> copies_of(std::vector<Block>& blocks) {
  const c10::AutoGradMode no_gradient(false);
  with_masters(blocks);
  settle(blocks);
  std::vector<at::Tensor> copies;
  for (const Block& block : blocks) {
    copies.push_back(at::zeros({block.length}, at::TensorOptions(at::kFloat).device(block.device)));
    for (const Segment& s : block.segments) {
      const at::Tensor x = s.master.defined() ? s.master : stretch(s.parameter, s.begin, s.length);
      copies.back().narrow(0, s.offset, s.length).copy_(x);
    }
  }
  return copies;
}

// A tensor on the same memory.
at::Tensor tensor_of(std::span<float> values) {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat);
}

}  // namespace

void PairScheme::choose(GossipOptions& options, const Schedule& schedule) const {
  options.rates = pair_rates(schedule, settings_.number("rate"));
}

void PairScheme::attach(const Connection& connection) {
  GossipOptions options{.poisson = settings_.text("clock") == "poisson",
                        .wire = options_.wire,
                        .seed = options_.seed,
                        .meet = connection.renewed ? world_.timeouts.meet_again() : world_.timeouts.meet,
                        .needs_all = !connection.renewed,
                        .silent = world_.timeouts.silent,
                        .jump_guard = options_.jump_guard,
                        .usual = connection.usual,
                        .interrupted = world_.interrupted};
  choose(options, connection.of_members);
  options.rates = options.rates.for_ranks(connection.members, world_.size);
  const Beside beside = options.algorithm->beside();
  momentum_ = beside.x_tilde;
  weighs_ = beside.weight;
  fresh_ = true;
  taken_ = copies_of(blocks_);
  w_.resize(blocks_.size(), 1);
  on_device_.assign(blocks_.size(), nullptr);
  auto held = make_held_blocks(beside);
  // Before gossip begins, in which a neighbour may push at once.
  for (std::size_t b = 0; b < held.size(); ++b) held[b]->now().weight = w_[b];
  gossip_ = std::make_unique<Gossip>(connection.make_transport(), std::move(options), std::move(held),
                                     world_.log, world_.timeline);
  Scheme::attach(connection);
}

void PairScheme::detach() {
  gossip_.reset();
  standing_by_ = paused_ = false;
  taken_.clear();
  streams_.clear();
  Scheme::detach();
}

// Sets x and x~ to the parameters.
std::vector<std::unique_ptr<HeldBlock>> PairScheme::make_held_blocks(const Beside& beside) {
  std::vector<std::unique_ptr<HeldBlock>> held;
  std::map<const Device*, std::shared_ptr<GossipStream>> streams;
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    if (!blocks_[b].on_device) {
      const auto* const values = taken_[b].const_data_ptr<float>();
      held.push_back(
          std::make_unique<HostBlock>(std::vector<float>(values, values + taken_[b].numel()), beside));
      continue;
    }
    const std::shared_ptr<Device>& device = blocks_[b].on_device->device();
    std::shared_ptr<GossipStream>& stream = streams[device.get()];
    if (!stream) streams_.push_back(stream = device->gossip());
    auto there = stream->make_held_block(taken_[b].clone(), beside);
    on_device_[b] = there.get();
    held.push_back(std::move(there));
  }
  return held;
}

void PairScheme::begin() {
  if (std::exchange(fresh_, false)) gossip_->meet();
}

void PairScheme::restart() {
  gossip_->forget();
  taken_ = copies_of(blocks_);
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_->access(static_cast<int>(b), [&](const Held& held) {
      if (on_device_[b] != nullptr) return on_device_[b]->begin(taken_[b]);
      const auto* const x = taken_[b].const_data_ptr<float>();
      std::copy_n(x, held.x.size(), held.x.begin());
      std::copy_n(x, held.x_tilde.size(), held.x_tilde.begin());
      std::ranges::fill(held.y, 0.0F);
    });
  }
  set_weights(std::vector<double>(w_.size(), 1));
}

void PairScheme::set_weights(std::span<const double> weights) {
  std::ranges::copy(weights, w_.begin());
  for (std::size_t b = 0; b < w_.size(); ++b)
    gossip_->access(static_cast<int>(b), [&](const Held& held) { held.weight = w_[b]; });
}

void PairScheme::state(StateVisitor& visitor) {
  if (momentum_) {
    visitor.values("x_tilde", Fresh::parameter, [this](Block& block, const auto& f) {
      const auto b = static_cast<std::size_t>(block.index);
      gossip_->access(block.index, [&](const Held& held) {
        if (on_device_[b] != nullptr) return on_device_[b]->x_tilde(f);
        f(tensor_of(held.x_tilde));
      });
    });
  }
  const GossipClock clock = gossip_->clock();
  visitor.numbers("clock", {.fresh = {0, -1},
                            .now = {static_cast<double>(clock.drawn), clock.until_next},
                            .set =
                                [this](std::span<const double> given) {
                                  gossip_->set_clock({static_cast<std::uint64_t>(given[0]), given[1]});
                                },
                            .refusal = [](std::span<const double> given) -> std::string {
                              // Not to ask for so many gradients is not to ask any more.
                              return is_whole_number(given[0]) && std::abs(given[1]) <= 1e9
                                         ? ""
                                         : "wants a whole number from 0 and one to 1e9";
                            }});
  if (weighs_) visit_weights(visitor, w_, [this](std::span<const double> given) { set_weights(given); });
}

void PairScheme::step() {
  resume();
  adapt();
  give();
}

void PairScheme::each_y(const std::function<void(const Block&, const at::Tensor& y)>& f) {
  wait_for_torch();  // before any block is locked
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_->access(static_cast<int>(b), [&](const Held& held) {
      const auto for_block = [&](const at::Tensor& y) { f(blocks_[b], y); };
      if (on_device_[b] != nullptr) return on_device_[b]->y(for_block);
      for_block(tensor_of(held.y));
    });
  }
}

void PairScheme::give() {
  wait_for_torch();
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_->gradient(static_cast<int>(b), [&](const Held& held) { renew(b, held, 1 / held.weight); });
  }
  let_torch_follow();
  gossip_->stepped();
}

// Orders the streams on GPUs: torch's comes before gossip's in wait_for_torch(), and after it in
// let_torch_follow().
void PairScheme::wait_for_torch() {
  for (const auto& stream : streams_) stream->wait_for_torch();
}
void PairScheme::let_torch_follow() {
  for (const auto& stream : streams_) stream->let_torch_follow();
}

// Adds the changes of the parameters, times `scale`, to x and x~, then copies x to the parameters.
void PairScheme::renew(std::size_t block, const Held& held, double scale) {
  RECORD_USER_SCOPE("starling::renew");
  w_[block] = held.weight;
  if (on_device_[block] != nullptr)
    return on_device_[block]->renew(blocks_[block], taken_[block], held, scale);
  auto* const taken = taken_[block].mutable_data_ptr<float>();
  for (const Segment& s : blocks_[block].segments) {
    const kernels::Parameters p = s.values();
    at::parallel_for(0, s.length, kGrain, [&](std::int64_t begin, std::int64_t end) {
      const auto first = static_cast<std::size_t>(begin), n = static_cast<std::size_t>(end - begin);
      const std::size_t first_in_block = static_cast<std::size_t>(s.offset) + first;
      in_parts(held.x.subspan(first_in_block, n),
               momentum_ ? held.x_tilde.subspan(first_in_block, n) : held.x_tilde,
               [&](std::size_t at, std::span<float> x, std::span<float> x_tilde) {
                 mix_momentum(x, x_tilde, held.eta_tau);
                 kernels::best_kernels().renew(p.from(first + at), taken + first_in_block + at, x.data(),
                                               momentum_ ? x_tilde.data() : nullptr,
                                               static_cast<float>(scale), x.size());
               });
    });
    s.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

void PairScheme::pause() {
  if (!std::exchange(paused_, true)) gossip_->pause();
}

void PairScheme::resume() {
  const bool stood_by = std::exchange(standing_by_, false);
  if (std::exchange(paused_, false) || stood_by) gossip_->resume();
}

void PairScheme::renew() {
  wait_for_torch();
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_->access(static_cast<int>(b), [&](const Held& held) { renew(b, held, 1); });
  }
  let_torch_follow();
}

ExchangeStatistics PairScheme::counted() const {
  ExchangeStatistics all;
  if (!gossip_) return all;
  const GossipStatistics gossip = gossip_->statistics();
  all.rounds = gossip.averaged;
  all.committed = gossip.averaged * taken_.size();
  all.bytes_sent = gossip.bytes_sent;
  all.payload_sent = gossip.payload_sent;
  all.jumped = gossip.jumped;
  for (const auto& neighbour : gossip.neighbours) {
    all.aborted += neighbour.aborted;
    all.mixed[neighbour.rank] += neighbour.averaged * taken_.size();
    all.late += neighbour.late;
  }
  return all;
}

void check_pairs(const Options&, const SchemeSettings& settings, const Schedule& schedule) {
  pair_rates(schedule, settings.number("rate"));
}

void check_pushes(const Options&, const SchemeSettings& settings, const Schedule& schedule) {
  push_rates(schedule, settings.number("rate"));
}

}  // namespace starling
