// Blocks on a GPU. Parameters and state are in its memory; what the exchange receives and sends is in the host's:
//
//   arrivals  -- copied -->  page-locked  -- uploaded -->  update (kernels/cuda/)  -- downloaded -->  page-locked  -- copied -->
//   wire block, start()
//
// step() puts this into streams and does not wait for the GPU, where backward may still be running (but with asynchronous schemes:
// held_on_device.h): arrivals are copied by the
// thread that calls it, the update is in torch's current stream, behind backward, and a thread of the device does the rest when
// the GPU has come so far. Who needs what comes of it on the host waits for that.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "starling/exchange/exchange.h"
#include "starling/kernels/cuda/gpu.h"

namespace starling {

// A GPU and the thread that waits for it.
class Device {
 public:
  // One of torch's CUDA devices. Throws Error where Starling cannot use it.
  explicit Device(at::Device device);
  // `memory` and `host`: of tensors whose memory the GPU works on, and of such from which it copies. current(): the stream that
  // torch puts work into now.
  Device(std::unique_ptr<kernels::cuda::Gpu> gpu, at::TensorOptions memory, at::TensorOptions host,
         std::function<kernels::cuda::Stream()> current);
  ~Device();  // waits for all that it was given
  Device(const Device&) = delete;

  const kernels::cuda::Gpu& gpu() const { return *gpu_; }
  kernels::cuda::Stream current() const { return current_(); }

  // Memory that the host writes or reads, and the device's of the same size.
  struct Room {
    at::Tensor host, device;
    // At least so many bytes. True: it is new, so that work in other streams than current() must wait before it uses it.
    bool fit(const Device& of, std::size_t bytes);
    std::byte* on_host() const { return static_cast<std::byte*>(host.mutable_data_ptr()); }
    std::byte* on_device() const { return static_cast<std::byte*>(device.mutable_data_ptr()); }
  };

  // Calls `work` on the device's thread when the GPU has come to the event, one after the other in the order of these calls. Once
  // the GPU has failed, no more is called. Returns the work's number, from 1.
  std::uint64_t then(const kernels::cuda::Event& reached, std::function<void()> work);
  // Until the work of this number has been done. Throws Error where the GPU has failed.
  void wait(std::uint64_t number);

 private:
  struct Work {
    const kernels::cuda::Event* reached;
    std::function<void()> call;
  };
  void run();

  const std::unique_ptr<kernels::cuda::Gpu> gpu_;
  const at::TensorOptions memory_, host_;
  const std::function<kernels::cuda::Stream()> current_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::queue<Work> queue_;
  std::uint64_t given_ = 0, done_ = 0;
  std::string failure_;
  bool ends_ = false;
  std::thread thread_;  // last: uses the rest
};

// What one block keeps for its passes on a device: room for what is copied, from pass to pass. That is a wire block for each
// neighbour and what was sent last (with random-k the last two), on the device and page-locked on the host.
class OnDevice {
 public:
  explicit OnDevice(std::shared_ptr<Device> device);
  ~OnDevice();  // waits
  OnDevice(const OnDevice&) = delete;

  const std::shared_ptr<Device>& device() const { return device_; }
  // Until all passes of the block are over, and their `then` has been called. Throws Error where the GPU has failed.
  void wait();
  // The same, and no more is said of a failure.
  void end() noexcept;
  // wait() for the last pass that sends.
  void wait_sent() { device_->wait(sends_.number); }

  // A pass in the making: what the host has, by its addresses on the device.
  struct There {
    std::vector<Arrival> arrived;
    Outgoing wire;
    std::uint32_t* sum;           // of what is sent
    kernels::Measured* measured;  // by arrival
  };
  // Uploads what arrived. `bytes`: of what is sent, without a trailer. Waits for the block's last pass of its kind, of those that
  // send or of those that do not.
  There begin(std::span<const Arrival> arrived, const Outgoing& wire, std::size_t bytes);
  // What a pass has seen, of all it works on or of a share of it.
  struct Seen {
    bool finite = true;
    std::uint32_t sum = 0;                      // of what is sent
    std::vector<kernels::Measured> measured{};  // by arrival
    void add(const Seen& other) {
      finite = finite && other.finite;
      sum += other.sum;
      for (std::size_t j = 0; j < measured.size(); ++j) measured[j].add(other.measured[j]);
    }
  };
  // Starts the pass that begin() has begun, on pointers of the device. When it is over and what is sent lies in the host's
  // wire.values, then(seen) is called on the device's thread.
  void launch(kernels::cuda::Table& table, std::function<void(const Seen&)> then);

 private:
  struct Counters {
    std::uint32_t not_finite = 0, sum = 0;
  };
  struct Slot {
    explicit Slot(const kernels::cuda::Gpu& gpu) : uploaded(gpu), computed(gpu), over(gpu) {}
    std::deque<Device::Room> arrivals;
    Device::Room table, counters;  // Counters, then what was measured
    kernels::cuda::Event uploaded, computed, over;
    std::uint64_t number = 0;  // of the last pass
  };
  // Makes uploads wait for what torch has done so far: new memory may have been another tensor's.
  void hold_uploads(Slot& slot);

  const std::shared_ptr<Device> device_;
  Slot sends_, keeps_;
  // What was sent last is on the device still, and need not be uploaded as `mine` of what arrives for it. With a mask the next
  // block lies otherwise and needs another room.
  Device::Room sent_, spare_;
  const void* sent_to_ = nullptr;  // in the host's memory: arrivals have it as `mine`
  // Between begin() and launch().
  Slot* slot_ = nullptr;
  std::size_t arrivals_ = 0, bytes_ = 0;
  void* to_ = nullptr;
};

}  // namespace starling
