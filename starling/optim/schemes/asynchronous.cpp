#include "starling/optim/schemes/asynchronous.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include "starling/kernels/update.h"

namespace starling {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements that are worth a thread

// Of the parameters, of narrow ones their masters, where the blocks lie.
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

// The same memory.
at::Tensor tensor_of(std::span<float> values) {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat);
}

}  // namespace

Asynchronous::Asynchronous(std::vector<Block>& blocks, std::unique_ptr<Transport> transport,
                           GossipOptions options, Log log, std::shared_ptr<Timeline> timeline,
                           std::function<void()> adapt)
    : blocks_(blocks),
      momentum_(options.momentum.eta != 0),
      weighs_(options.exchanged == Exchanged::pushes && !options.tracks),
      taken_(copies_of(blocks)),
      on_device_(blocks.size()),
      gossip_(std::move(transport), options, hold(options), std::move(log), std::move(timeline)),
      adapt_(std::move(adapt)) {
  // Of push-sum, where a parameter group has been added in mid-run.
  for (std::size_t b = 0; b < taken_.size(); ++b)
    gossip_.look(static_cast<int>(b), [&](const Held& held) { held.weight += blocks[b].weight - 1; });
}

// x and x~ as the parameters are.
std::vector<std::unique_ptr<HeldBlock>> Asynchronous::hold(const GossipOptions& options) {
  std::vector<std::unique_ptr<HeldBlock>> held;
  std::map<const Device*, std::shared_ptr<GossipStream>> streams;
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    if (!blocks_[b].on_device) {
      const auto* const values = taken_[b].const_data_ptr<float>();
      held.push_back(std::make_unique<HostBlock>(std::vector<float>(values, values + taken_[b].numel()),
                                                 momentum_, options.tracks));
      continue;
    }
    const std::shared_ptr<Device>& device = blocks_[b].on_device->device();
    std::shared_ptr<GossipStream>& stream = streams[device.get()];
    if (!stream) streams_.push_back(stream = device->gossip());
    auto there = stream->hold(taken_[b].clone(), momentum_, options.tracks);
    on_device_[b] = there.get();
    held.push_back(std::move(there));
  }
  return held;
}

void Asynchronous::begin() {
  if (!paused_) return gossip_.meet();  // a first time: neighbours may have averaged with it already
  gossip_.forget();
  taken_ = copies_of(blocks_);
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_.look(static_cast<int>(b), [&](const Held& held) {
      held.weight = blocks_[b].weight;
      if (on_device_[b] != nullptr) return on_device_[b]->begin(taken_[b]);
      const auto* const x = taken_[b].const_data_ptr<float>();
      std::copy_n(x, held.x.size(), held.x.begin());
      std::copy_n(x, held.x_tilde.size(), held.x_tilde.begin());
      std::ranges::fill(held.y, 0.0F);
    });
  }
}

void Asynchronous::step() {
  resume();
  if (weighs_) renew();  // what was done to the parameters since is not divided by w
  adapt();
  give();
}

void Asynchronous::each_y(const std::function<void(const Block&, const at::Tensor& y)>& f) {
  catch_up();  // before any block is locked
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_.look(static_cast<int>(b), [&](const Held& held) {
      const auto for_block = [&](const at::Tensor& y) { f(blocks_[b], y); };
      if (on_device_[b] != nullptr) return on_device_[b]->y(for_block);
      for_block(tensor_of(held.y));
    });
  }
}

void Asynchronous::give() {
  catch_up();
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_.gradient(static_cast<int>(b), [&](const Held& held) { renew(b, held, 1 / held.weight); });
  }
  lead();
  gossip_.stepped();
}

// On GPUs: torch's stream before gossip's, and after.
void Asynchronous::catch_up() {
  for (const auto& stream : streams_) stream->catch_up();
}
void Asynchronous::lead() {
  for (const auto& stream : streams_) stream->lead();
}

// What was done to the parameters goes to x and x~, times `scale`, and x to the parameters.
void Asynchronous::renew(std::size_t block, const Held& held, double scale) {
  RECORD_USER_SCOPE("starling::renew");
  blocks_[block].weight = held.weight;
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

void Asynchronous::stand_by() { standing_by_ |= gossip_.stand_by(); }

void Asynchronous::pause() {
  if (!std::exchange(paused_, true)) gossip_.pause();
}

void Asynchronous::resume() {
  const bool stood_by = std::exchange(standing_by_, false);
  if (std::exchange(paused_, false) || stood_by) gossip_.resume();
}

void Asynchronous::renew() {
  catch_up();
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    gossip_.look(static_cast<int>(b), [&](const Held& held) { renew(b, held, 1); });
  }
  lead();
}

void Asynchronous::x_tilde(std::size_t block, const std::function<void(const at::Tensor&)>& f) {
  gossip_.look(static_cast<int>(block), [&](const Held& held) {
    if (on_device_[block] != nullptr) return on_device_[block]->x_tilde(f);
    f(tensor_of(held.x_tilde));
  });
}

ExchangeStatistics Asynchronous::counted() const {
  const GossipStatistics gossip = gossip_.statistics();
  ExchangeStatistics all;
  all.rounds = gossip.averaged;
  all.committed = gossip.averaged * taken_.size();
  all.bytes_sent = gossip.bytes_sent;
  for (const auto& neighbour : gossip.neighbours) {
    all.aborted += neighbour.aborted;
    all.late += neighbour.late;
  }
  return all;
}

}  // namespace starling
