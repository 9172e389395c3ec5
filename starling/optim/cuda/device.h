// One GPU through kernels/cuda/, and the passes of blocks over it: cuda.h.
#pragma once

#include <atomic>
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
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "starling/core/error.h"
#include "starling/kernels/cuda/gpu.h"
#include "starling/kernels/cuda/table.h"
#include "starling/optim/cuda/cuda.h"

namespace starling {

class CudaDevice final : public Device, public std::enable_shared_from_this<CudaDevice> {
 public:
  explicit CudaDevice(at::Device device);
  // `memory`: options of tensors that the GPU works on. `host`: options of tensors that it copies
  // from and to. current(): torch's current stream.
  CudaDevice(std::unique_ptr<kernels::cuda::Gpu> gpu, at::TensorOptions memory, at::TensorOptions host,
             std::function<kernels::cuda::Stream()> current);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;

  std::shared_ptr<OnDevice> passes() override;
  std::shared_ptr<GossipStream> gossip() override;
  const std::string& not_kept() const override { return gpu_->not_kept(); }
  void set_rank(int rank) override { rank_ = rank; }

  const kernels::cuda::Gpu& gpu() const { return *gpu_; }
  kernels::cuda::Stream current() const { return current_(); }

  // Memory that the host writes or reads, and as much on the device.
  struct Room {
    at::Tensor host, device;
    // Makes room for so many bytes at least. True: the memory is new, so that work in streams other
    // than current() must wait before it uses it. If it throws, nothing has changed.
    bool fit(const CudaDevice& of, std::size_t bytes);
    std::byte* on_host() const { return static_cast<std::byte*>(host.mutable_data_ptr()); }
    std::byte* on_device() const { return static_cast<std::byte*>(device.mutable_data_ptr()); }
  };

  // f(), which puts work into streams. If the driver refuses a part of it, the GPU has failed:
  // nobody may go on from what is half done. Throws Error then, and if the GPU has failed before.
  template <class F>
  auto guarded(const F& f) {
    check();
    try {
      return f();
    } catch (const Error& error) {
      fail(error.what());
      check();
      throw;
    }
  }
  // Notes that the GPU has failed, if it is the first failure. Before that it waits for the work
  // that was begun, so that its memory may be freed.
  void fail(const std::string& what) noexcept;
  bool has_failed();

  // Calls `work` on the device's thread when the GPU has come to the event, in the order of these
  // calls. After a failure of the GPU, calls no more. Returns the work's number, from 1.
  std::uint64_t then(const kernels::cuda::Event& reached, std::function<void()> work);
  // Waits until the work of this number is done. Throws Error if the GPU has failed.
  void wait(std::uint64_t number);

 private:
  struct Work {
    const kernels::cuda::Event* reached;
    std::function<void()> call;
  };
  void run();
  void check();  // throws Error if the GPU has failed

  const std::unique_ptr<kernels::cuda::Gpu> gpu_;
  const at::TensorOptions memory_, host_;
  const std::function<kernels::cuda::Stream()> current_;
  std::atomic<int> rank_ = -1;  // of the worker that uses it; -1: not known
  std::mutex mutex_;            // guards what follows
  std::condition_variable changed_;
  std::queue<Work> queue_;
  std::uint64_t given_ = 0, done_ = 0;
  std::string failure_;
  bool ends_ = false;
  std::thread thread_;  // last: uses the rest
};

// Keeps room for copies from pass to pass, on the device and page-locked on the host: a wire block
// for each neighbour, and what was sent last (with random-k the last two).
class CudaPasses final : public OnDevice {
 public:
  explicit CudaPasses(std::shared_ptr<CudaDevice> device) : CudaPasses(std::move(device), nullptr) {}
  ~CudaPasses() override;
  CudaPasses(const CudaPasses&) = delete;

  const std::shared_ptr<Device>& device() const override { return as_device_; }
  std::shared_ptr<OnDevice> beside() override;
  void wait() override { device_->wait(last()); }
  void end() noexcept override;
  std::vector<Arrival> upload(std::span<const Arrival> arrived, std::size_t length) override;
  void to_host(std::span<const Copy> copies) override;
  void from_host(std::span<const Copy> copies) override;
  There begin(std::span<const Arrival> arrived, const Outgoing& outgoing, std::size_t length) override;
  void add(const kernels::Step& step, std::span<const kernels::Mix> mixes, const kernels::Parameters& x,
           kernels::Gradient g, kernels::RuleState state, const kernels::WireBlock& outgoing,
           std::size_t n) override {
    table_.add(step, mixes, x, g, state, outgoing, n);
  }
  void launch(std::function<void(const Seen&)> then) override;

 private:
  void put_into_streams(std::function<void(const Seen&)> then);
  struct Counters {
    std::uint32_t not_finite = 0, sum = 0;
  };
  // Uploads to these rooms, each of which one block takes.
  struct Uploads {
    explicit Uploads(const kernels::cuda::Gpu& gpu) : done(gpu) {}
    std::deque<CudaDevice::Room> rooms;
    std::vector<std::pair<CudaDevice::Room*, std::span<const std::byte>>> waiting{};  // not begun yet
    kernels::cuda::Event done;  // in the stream of uploads
  };
  struct Slot {
    explicit Slot(const kernels::cuda::Gpu& gpu) : uploads(gpu), computed(gpu), downloaded(gpu) {}
    Uploads uploads;
    CudaDevice::Room table, counters;  // Counters, then what was measured
    kernels::cuda::Event computed, downloaded;
    std::uint64_t number = 0;  // of the last pass
  };
  // Makes room for those of a block of this length that are not on the device yet, which wait to be
  // uploaded. Returns all by their addresses there.
  std::vector<Arrival> place(std::span<const Arrival> arrived, std::size_t length, Uploads& to);
  void upload_waiting(Uploads& to);
  // The passes of a block's parameters and of the vectors beside them: which of them has written a
  // wire block last, by its place in the host's memory.
  using SentBy = std::vector<std::pair<const void*, CudaPasses*>>;
  CudaPasses(std::shared_ptr<CudaDevice> device, std::shared_ptr<SentBy> sent_by);
  void remember_sent(const void* to);
  void forget_sent();  // of this one
  // Makes uploads wait for what torch has done so far: new memory may have been another tensor's.
  void make_uploads_wait(kernels::cuda::Event& event);
  // The number of the last pass, of this one or of one beside it.
  std::uint64_t last() const;
  // Waits until torch's current stream has come so far.
  void wait_for_copies();

  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<Device> as_device_ = device_;
  std::vector<std::weak_ptr<CudaPasses>> beside_;
  Slot sends_, keeps_;
  Uploads shared_;               // of upload()
  kernels::cuda::Event copied_;  // of to_host() and from_host(), in torch's current stream
  // The block that was sent last is still on the device, so it need not be uploaded again as `mine`
  // of its arrivals. With a mask the next block has another layout and needs another room.
  CudaDevice::Room sent_, spare_;
  const std::shared_ptr<SentBy> sent_by_;
  // From begin() to launch().
  Slot* slot_ = nullptr;
  kernels::cuda::Table table_;
  std::size_t arrivals_ = 0, bytes_ = 0;
  bool masked_ = false;
  void* to_ = nullptr;
};

}  // namespace starling
