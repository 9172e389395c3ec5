#include "starling/optim/cuda/device.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/with_lock.h"
#include "starling/optim/cuda/held_on_device.h"

namespace starling {
namespace {

using kernels::Measured;
using kernels::cuda::Gpu;
using kernels::cuda::Stream;

// Copies by all of torch's threads: one alone is slower than the link to the GPU.
void copy_by_threads(std::byte* to, std::span<const std::byte> from) {
  constexpr std::int64_t kShare = 1 << 20;
  const auto size = static_cast<std::int64_t>(from.size());
  at::parallel_for(0, (size + kShare - 1) / kShare, 1, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * kShare, end = std::min(last * kShare, size);
    std::memcpy(to + begin, from.data() + begin, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace

// ---------------------------------------------------------------- CudaDevice

CudaDevice::CudaDevice(at::Device device)
    : CudaDevice(std::make_unique<Gpu>(device.index()), at::TensorOptions(at::kByte).device(device),
                 at::TensorOptions(at::kByte).pinned_memory(true),
                 [torch = c10::impl::VirtualGuardImpl(device.type()), device] {
                   return torch.getStreamNativeHandle(torch.getStream(device));
                 }) {}

CudaDevice::CudaDevice(std::unique_ptr<Gpu> gpu, at::TensorOptions memory, at::TensorOptions host,
                       std::function<Stream()> current)
    : gpu_(std::move(gpu)), memory_(memory), host_(host), current_(std::move(current)), thread_([this] {
        run();
      }) {}

CudaDevice::~CudaDevice() {
  with_lock(mutex_, [this] { ends_ = true; });
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<OnDevice> CudaDevice::passes() {
  return guarded([this] { return std::make_shared<CudaPasses>(shared_from_this()); });
}
std::shared_ptr<GossipStream> CudaDevice::gossip() {
  return guarded([this] { return std::make_shared<CudaGossip>(shared_from_this()); });
}

bool CudaDevice::Room::fit(const CudaDevice& of, std::size_t bytes) {
  const auto wanted = static_cast<std::int64_t>(bytes);
  if (host.defined() && host.numel() >= wanted) return false;
  Room larger{at::empty({wanted}, of.host_), at::empty({wanted}, of.memory_)};
  *this = std::move(larger);
  return true;
}

void CudaDevice::check() {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Error(failure_);
}

bool CudaDevice::has_failed() {
  return with_lock(mutex_, [this] { return !failure_.empty(); });
}

void CudaDevice::fail(const std::string& what) noexcept {
  gpu_->finish(current());
  const std::string line = what.substr(0, what.find('\n'));  // torch's have more of them
  const int rank = rank_;
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = rank < 0 ? line : fmt::format("rank {}: {}", rank, line);
}

std::uint64_t CudaDevice::then(const kernels::cuda::Event& reached, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  queue_.push({&reached, std::move(work)});
  changed_.notify_all();
  return ++given_;
}

void CudaDevice::wait(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number; });
  if (!failure_.empty()) throw Error(failure_);
}

void CudaDevice::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Work work = std::move(queue_.front());
    queue_.pop();
    const bool failed = !failure_.empty();
    lock.unlock();
    try {
      work.reached->wait();  // after a failure too: a waiter may free the memory of a copy next
      if (!failed) work.call();
    } catch (const std::exception& error) {
      fail(error.what());
    }
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

// ---------------------------------------------------------------- CudaPasses

CudaPasses::CudaPasses(std::shared_ptr<CudaDevice> device, std::shared_ptr<SentBy> sent_by)
    : device_(std::move(device)),
      sends_(device_->gpu()),
      keeps_(device_->gpu()),
      shared_(device_->gpu()),
      copied_(device_->gpu()),
      sent_by_(sent_by ? std::move(sent_by) : std::make_shared<SentBy>()) {}

CudaPasses::~CudaPasses() {
  end();
  forget_sent();
}

std::shared_ptr<OnDevice> CudaPasses::beside() {
  const auto made =
      device_->guarded([this] { return std::shared_ptr<CudaPasses>(new CudaPasses(device_, sent_by_)); });
  std::erase_if(beside_, [](const auto& other) { return other.expired(); });
  beside_.push_back(made);
  return made;
}

void CudaPasses::remember_sent(const void* to) {
  std::erase_if(*sent_by_, [&](const auto& sent) { return sent.first == to || sent.second == this; });
  sent_by_->emplace_back(to, this);
}

void CudaPasses::forget_sent() {
  std::erase_if(*sent_by_, [this](const auto& sent) { return sent.second == this; });
}

std::uint64_t CudaPasses::last() const {
  std::uint64_t number = std::max(sends_.number, keeps_.number);
  for (const auto& other : beside_) {
    if (const auto there = other.lock()) number = std::max(number, there->last());
  }
  return number;
}

void CudaPasses::end() noexcept {
  try {
    wait();
  } catch (const Error&) {
    // Every caller that needed the GPU's work has got this error.
  }
  try {
    shared_.done.wait();  // uploads that no pass has read
  } catch (const Error& error) {
    device_->fail(error.what());
  }
}

void CudaPasses::make_uploads_wait(kernels::cuda::Event& event) {
  event.record(device_->current());
  event.make_wait(device_->gpu().uploads());
}

std::vector<Arrival> CudaPasses::place(std::span<const Arrival> arrived, std::size_t length, Uploads& to) {
  std::vector<Arrival> there(arrived.begin(), arrived.end());
  auto& uploads = to.waiting;
  uploads.clear();
  const auto put = [&](SentBlock& block, bool own) {
    if (block.on_device || block.bytes().empty()) return;
    // Other vectors and a tail may follow, which this pass does not read.
    const std::size_t bytes =
        std::min(block.bytes().size(), bytes_of(block.wire, block.mask.chosen_of(length)));
    block.on_device = true;
    const void* const at = block.bytes().data();
    const auto sent = std::ranges::find(*sent_by_, at, [](const auto& one) { return one.first; });
    if (own && sent != sent_by_->end()) {
      block.block.bytes = {sent->second->sent_.on_device(), bytes};
      return;
    }
    if (uploads.size() == to.rooms.size()) to.rooms.emplace_back();
    CudaDevice::Room& room = to.rooms[uploads.size()];
    if (room.fit(*device_, bytes)) make_uploads_wait(to.done);
    uploads.emplace_back(&room, block.bytes().first(bytes));
    block.block.bytes = {room.on_device(), bytes};
  };
  for (Arrival& a : there) put(a.theirs, false), put(a.mine, true);
  return there;
}

void CudaPasses::upload_waiting(Uploads& to) {
  for (const auto& [room, from] : to.waiting) {
    copy_by_threads(room->on_host(), from);
    device_->gpu().upload(room->on_device(), room->on_host(), from.size(), device_->gpu().uploads());
  }
  to.waiting.clear();
}

std::vector<Arrival> CudaPasses::upload(std::span<const Arrival> arrived, std::size_t length) {
  wait();
  return device_->guarded([&] {
    shared_.done.wait();
    std::vector<Arrival> there = place(arrived, length, shared_);
    upload_waiting(shared_);
    shared_.done.record(device_->gpu().uploads());
    shared_.done.make_wait(device_->current());
    return there;
  });
}

void CudaPasses::to_host(std::span<const Copy> copies) {
  device_->guarded([&] {
    const Stream stream = device_->current();
    for (const Copy& copy : copies) device_->gpu().download(copy.to, copy.from, copy.bytes, stream);
    wait_for_copies();
  });
}

void CudaPasses::from_host(std::span<const Copy> copies) {
  device_->guarded([&] {
    const Stream stream = device_->current();
    for (const Copy& copy : copies) device_->gpu().upload(copy.to, copy.from, copy.bytes, stream);
    wait_for_copies();
  });
}

void CudaPasses::wait_for_copies() {
  copied_.record(device_->current());
  copied_.wait();
}

OnDevice::There CudaPasses::begin(std::span<const Arrival> arrived, const Outgoing& outgoing,
                                  std::size_t length) {
  const bool sends = outgoing.values != nullptr;
  const std::size_t bytes = sends ? bytes_of(outgoing.wire, outgoing.mask.chosen_of(length)) : 0;
  Slot& slot = sends ? sends_ : keeps_;
  device_->wait(slot.number);
  slot_ = &slot, arrivals_ = arrived.size(), bytes_ = bytes, to_ = outgoing.values;
  masked_ = outgoing.mask.one_in != 1;
  table_ = {};

  CudaDevice::Room& sent = masked_ ? spare_ : sent_;
  return device_->guarded([&] {
    if (sends && sent.fit(*device_, bytes) && !masked_) forget_sent();
    There there{place(arrived, length, slot.uploads), outgoing, nullptr, nullptr};
    if (sends) there.outgoing.values = sent.on_device();
    if (slot.counters.fit(*device_, sizeof(Counters) + arrivals_ * sizeof(Measured)))
      make_uploads_wait(slot.uploads.done);
    auto* const counters = reinterpret_cast<Counters*>(slot.counters.on_device());
    there.sum = &counters->sum;
    there.measured = reinterpret_cast<Measured*>(counters + 1);
    return there;
  });
}

void CudaPasses::launch(std::function<void(const Seen&)> then) {
  device_->guarded([&] { put_into_streams(std::move(then)); });
}

void CudaPasses::put_into_streams(std::function<void(const Seen&)> then) {
  Slot& slot = *slot_;
  const Gpu& gpu = device_->gpu();
  const std::size_t counters = sizeof(Counters) + arrivals_ * sizeof(Measured);
  if (slot.table.fit(*device_, std::bit_ceil(table_.bytes()))) make_uploads_wait(slot.uploads.done);
  const auto launches = table_.write(slot.table.on_host());
  std::memset(slot.counters.on_host(), 0, counters);
  // No tensor is made from here on: without memory for it, an upload would be left without its
  // launch.
  if (to_ != nullptr) {
    if (masked_) std::swap(sent_, spare_);
    remember_sent(to_);
  }
  upload_waiting(slot.uploads);
  gpu.upload(slot.table.on_device(), slot.table.on_host(), table_.bytes(), gpu.uploads());
  gpu.upload(slot.counters.on_device(), slot.counters.on_host(), counters, gpu.uploads());
  slot.uploads.done.record(gpu.uploads());

  const Stream stream = device_->current();
  slot.uploads.done.make_wait(stream);
  auto* const not_finite = &reinterpret_cast<Counters*>(slot.counters.on_device())->not_finite;
  for (const auto& launch : launches) gpu.launch(launch, slot.table.on_device(), not_finite, stream);
  slot.computed.record(stream);

  slot.computed.make_wait(gpu.downloads());
  const std::byte* const sent = bytes_ > 0 ? sent_.on_host() : nullptr;
  if (sent != nullptr) gpu.download(sent_.on_host(), sent_.on_device(), bytes_, gpu.downloads());
  gpu.download(slot.counters.on_host(), slot.counters.on_device(), counters, gpu.downloads());
  slot.downloaded.record(gpu.downloads());
  slot.number = device_->then(
      slot.downloaded, [&slot, sent, to = to_, bytes = bytes_, arrivals = arrivals_, then = std::move(then)] {
        if (sent != nullptr) std::memcpy(to, sent, bytes);
        const std::byte* const words = slot.counters.on_host();
        Counters counted;
        std::memcpy(&counted, words, sizeof counted);
        Seen seen{counted.not_finite == 0, counted.sum, std::vector<Measured>(arrivals)};
        if (arrivals > 0)
          std::memcpy(seen.measured.data(), words + sizeof counted, arrivals * sizeof(Measured));
        then(seen);
      });
}

std::shared_ptr<Device> cuda_device(at::Device device) { return std::make_shared<CudaDevice>(device); }

}  // namespace starling
