#include "starling/optim/cuda/held_on_device.h"

#include <bit>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "starling/core/error.h"
#include "starling/gossip/a2cid2.h"
#include "starling/kernels/wire.h"
#include "starling/optim/blocks.h"

namespace starling {
namespace {

using kernels::Mix;
using kernels::cuda::Renewal;
using kernels::cuda::Table;

}  // namespace

// ---------------------------------------------------------------- CudaGossip

CudaGossip::CudaGossip(std::shared_ptr<CudaDevice> device)
    : device_(std::move(device)),
      torchs_(gpu()),
      own_(gpu()),
      fresh_(gpu()),
      uploaded_(gpu()),
      downloaded_(gpu()) {}

void CudaGossip::wait_for_torch() {
  device_->guarded([this] {
    torchs_.record(device_->current());
    torchs_.wait();
  });
}

std::unique_ptr<HeldOnDevice> CudaGossip::make_held_block(at::Tensor x, const Beside& beside) {
  return std::make_unique<CudaHeld>(shared_from_this(), std::move(x), beside);
}

void CudaGossip::follow_torch() {
  device_->guarded([this] {
    torchs_.record(device_->current());
    torchs_.make_wait(gpu().gossip());
  });
}

void CudaGossip::let_torch_follow() {
  device_->guarded([this] {
    own_.record(gpu().gossip());
    own_.make_wait(device_->current());
  });
}

void CudaGossip::launch(Table& table, CudaDevice::Room& room) {
  if (room.fit(*device_, std::bit_ceil(table.bytes()))) follow_torch();
  const auto launches = table.write(room.on_host());
  device_->guarded([&] {
    gpu().upload(room.on_device(), room.on_host(), table.bytes(), gpu().gossip());
    for (const auto& launch : launches) gpu().launch(launch, room.on_device(), nullptr, gpu().gossip());
  });
}

void CudaGossip::wait() noexcept {
  try {
    for (const kernels::cuda::Stream stream : {gpu().uploads(), gpu().gossip()}) {
      own_.record(stream);
      own_.wait();
    }
  } catch (const Error& error) {
    device_->fail(error.what());
  }
}

void CudaGossip::fit(CudaDevice::Room& room, std::size_t bytes) {
  if (!room.fit(*device_, bytes)) return;
  fresh_.record(device_->current());
  fresh_.make_wait(gpu().uploads());
  fresh_.make_wait(gpu().gossip());
}

CudaGossip::Seen CudaGossip::take_turn(const std::function<void(Turn&, Table&)>& fill) noexcept {
  const std::lock_guard lock(mutex_);
  if (device_->has_failed()) return {};
  try {
    Turn turn(*this);
    Table table;
    fill(turn, table);
    return turn.run(table);
  } catch (const c10::Error& error) {  // there may be no memory
    device_->fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    device_->fail(error.what());
  }
  return {};
}

// ---------------------------------------------------------------- Turn

CudaGossip::Turn::Turn(CudaGossip& stream) : stream_(stream) {
  stream_.fit(stream_.counters_, sizeof(Counters));
}

kernels::Sent CudaGossip::Turn::upload(const SentBlock& q) {
  CudaDevice::Room& room = stream_.arrivals_.at(uploaded_++);
  const auto bytes = q.bytes();
  stream_.fit(room, bytes.size());
  std::memcpy(room.on_host(), bytes.data(), bytes.size());
  stream_.gpu().upload(room.on_device(), room.on_host(), bytes.size(), stream_.gpu().uploads());
  kernels::Sent there = q.values();
  there.values = room.on_device();
  return there;
}

kernels::WireBlock CudaGossip::Turn::download(const kernels::WireBlock& to, std::size_t bytes) {
  stream_.fit(stream_.sent_, bytes);
  to_ = to, bytes_ = bytes;
  kernels::WireBlock there = to;
  there.values = stream_.sent_.on_device();
  there.sum = &counters()->sum;
  return there;
}

CudaGossip::Seen CudaGossip::Turn::run(Table& table) {
  CudaGossip& s = stream_;
  const kernels::cuda::Gpu& gpu = s.gpu();
  s.fit(s.table_, std::bit_ceil(table.bytes()));
  const auto launches = table.write(s.table_.on_host());
  Counters counted;
  std::memcpy(s.counters_.on_host(), &counted, sizeof counted);
  gpu.upload(s.table_.on_device(), s.table_.on_host(), table.bytes(), gpu.uploads());
  gpu.upload(s.counters_.on_device(), s.counters_.on_host(), sizeof counted, gpu.uploads());
  s.uploaded_.record(gpu.uploads());
  s.uploaded_.wait();  // so that no renewal in gossip's stream waits for the upload
  for (const auto& launch : launches)
    gpu.launch(launch, s.table_.on_device(), &counters()->not_finite, gpu.gossip());
  // Not in downloads(), where the downloads of updates wait for backward.
  if (bytes_ > 0) gpu.download(s.sent_.on_host(), s.sent_.on_device(), bytes_, gpu.gossip());
  gpu.download(s.counters_.on_host(), s.counters_.on_device(), sizeof counted, gpu.gossip());
  s.downloaded_.record(gpu.gossip());
  s.downloaded_.wait();
  if (bytes_ > 0) std::memcpy(to_.values, s.sent_.on_host(), bytes_);
  std::memcpy(&counted, s.counters_.on_host(), sizeof counted);
  if (to_.sum != nullptr) *to_.sum += counted.sum;
  return {counted.not_finite == 0, counted.measured};
}

// ---------------------------------------------------------------- CudaHeld

CudaHeld::CudaHeld(std::shared_ptr<CudaGossip> stream, at::Tensor x, const Beside& beside)
    : stream_(std::move(stream)),
      x_(std::move(x)),
      x_tilde_(beside.x_tilde ? x_.clone() : at::Tensor()),
      y_(beside.y ? at::zeros_like(x_) : at::Tensor()),
      zeros_(beside.y ? at::zeros_like(x_) : at::Tensor()) {
  stream_->follow_torch();
}

CudaHeld::~CudaHeld() { stream_->wait(); }

Held CudaHeld::now() {
  return {
      {x(), size()}, {x_tilde(), x_tilde_.defined() ? size() : 0}, {y(), y_.defined() ? size() : 0}, weight_};
}

void CudaHeld::momentum(Table& table, double eta_tau) const {
  if (!x_tilde_.defined() || eta_tau == 0) return;
  table.add(Renewal{nullptr, nullptr, x(), x_tilde(), 0, momentum_share<float>(eta_tau), size(), 0});
}

void CudaHeld::mix(Table& table, float* to, const Mix& neighbour) const {
  table.add(kernels::Step{}, {&neighbour, 1}, to, nullptr, {}, {}, size());
}

void CudaHeld::mix_momentum(double eta_tau) {
  if (!x_tilde_.defined() || eta_tau == 0) return;
  stream_->take_turn([&](CudaGossip::Turn&, Table& table) { momentum(table, eta_tau); });
}

bool CudaHeld::send(double eta_tau, const kernels::WireBlock& to, float times) {
  const std::size_t n = size(), bytes = bytes_of(to.wire, n);
  const bool finite = stream_
                          ->take_turn([&](CudaGossip::Turn& turn, Table& table) {
                            kernels::WireBlock there = turn.download(to, y_.defined() ? 2 * bytes : bytes);
                            momentum(table, eta_tau);
                            table.add(kernels::Step{}, {}, x(), nullptr, {}, there, n);
                            there.values = static_cast<std::byte*>(there.values) + bytes;
                            if (y_.defined()) table.add(kernels::Step{}, {}, y(), nullptr, {}, there, n);
                          })
                          .finite;
  if (!finite || !y_.defined() || times == 1) return finite;
  const std::span behind(static_cast<std::byte*>(to.values) + bytes, bytes);
  std::vector<float> scaled(n);
  kernels::decode(behind.data(), to.wire, n, scaled.data());
  for (float& value : scaled) value *= times;
  kernels::encode(scaled.data(), n, to.wire, behind.data());
  return kernels::all_finite(behind, to.wire);
}

kernels::Measured CudaHeld::average(double eta_tau, float alpha, float alpha_tilde, const SentBlock& q_j,
                                    const SentBlock& q_i) {
  return stream_
      ->take_turn([&](CudaGossip::Turn& turn, Table& table) {
        const kernels::Sent theirs = turn.upload(q_j), mine = turn.upload(q_i);
        momentum(table, eta_tau);
        mix(table, x(), {alpha, theirs, mine, turn.measured()});
        if (x_tilde_.defined()) mix(table, x_tilde(), {alpha_tilde, theirs, mine, nullptr});
      })
      .measured;
}

void CudaHeld::move_towards(const SentBlock& q, float share) {
  stream_->take_turn(
      [&](CudaGossip::Turn& turn, Table& table) { mix(table, x(), {share, turn.upload(q), x(), nullptr}); });
}

void CudaHeld::add_tracked(const SentBlock& q, float share) {
  stream_->take_turn([&](CudaGossip::Turn& turn, Table& table) {
    kernels::Sent q_y = turn.upload(q);
    q_y.values = static_cast<const std::byte*>(q_y.values) + bytes_of(q.wire, size());
    mix(table, y(), {share, q_y, zeros_.const_data_ptr<float>(), nullptr});
  });
}

void CudaHeld::renew(const Block& block, const at::Tensor& taken, const Held& held, double scale) {
  const float share = x_tilde_.defined() ? momentum_share<float>(held.eta_tau) : 0;
  Table table;
  for (const Segment& s : block.segments) {
    table.add(Renewal{s.values(), taken.mutable_data_ptr<float>() + s.offset, x() + s.offset,
                      x_tilde_.defined() ? x_tilde() + s.offset : nullptr, static_cast<float>(scale), share,
                      static_cast<std::uint64_t>(s.length), 0});
    s.parameter.unsafeGetTensorImpl()->bump_version();
  }
  stream_->launch(table, renewals_);
}

void CudaHeld::begin(const at::Tensor& x) {
  with(x_, [&](const at::Tensor& mine) { mine.copy_(x); });
  if (x_tilde_.defined()) with(x_tilde_, [&](const at::Tensor& mine) { mine.copy_(x); });
  if (y_.defined()) with(y_, [](const at::Tensor& mine) { mine.zero_(); });
}

void CudaHeld::with(const at::Tensor& values, const std::function<void(const at::Tensor&)>& f) {
  stream_->wait_for_torch();
  stream_->wait();
  f(values);
  stream_->follow_torch();
}

}  // namespace starling
