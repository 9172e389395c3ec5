// A block that gossip holds, in a GPU's memory (gossip/held_block.h). All that is done to x and x~ is done in a stream of the GPU that
// is gossip's, beside torch's, in the order in which the threads have come to the block's lock:
//
//   transport's thread   uploads what came, launches, downloads what goes, and waits for that
//   training thread      step(): waits until torch's stream has come to it, or what it launches would stand before all averagings until
//                        backward is over; then launches the renewal, and torch's stream goes on behind it
//
// So step() waits for the GPU's own work, and never for a neighbour. What waits for the GPU on the transport's thread is as long as
// a block's copies take.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <ATen/core/Tensor.h>

#include "starling/gossip/held_block.h"
#include "starling/kernels/cuda/gpu.h"
#include "starling/kernels/cuda/table.h"
#include "starling/optim/blocks.h"
#include "starling/optim/device.h"

namespace starling {

// Gossip's stream of one GPU, of one optimizer.
class GossipStream {
 public:
  explicit GossipStream(std::shared_ptr<Device> device);

  // --- on the training thread
  // Waits until torch's current stream has done all that it was given. Throws Error where the GPU has failed, in a turn too.
  void catch_up();
  // What is launched here from now on comes behind what torch's current stream was given; and the other way round.
  void follow();
  void lead();
  // Launches a table, which is written to this room; catch_up() has been called since the last time, after lead().
  void launch(kernels::cuda::Table& table, Device::Room& room);
  // Until all is done that was launched here, and uploaded. That the GPU has failed is said by catch_up().
  void wait() noexcept;

  // --- on any thread
  struct Seen {
    bool finite = false;
    kernels::Measured measured{};
  };
  // What a launch takes from the host and brings there.
  class Turn {
   public:
    // What came, on the device; two at most.
    kernels::Sent upload(const SentBlock& q);
    // Room on the device for what is to go to `to`, so many bytes.
    kernels::WireBlock download(const kernels::WireBlock& to, std::size_t bytes);
    kernels::Measured* measured() const { return &counters()->measured; }  // on the device

   private:
    friend class GossipStream;
    struct Counters {
      std::uint32_t not_finite = 0, sum = 0;
      kernels::Measured measured{};
    };
    explicit Turn(GossipStream& stream);
    Counters* counters() const { return reinterpret_cast<Counters*>(stream_.counters_.on_device()); }
    Seen run(kernels::cuda::Table& table);

    GossipStream& stream_;
    std::size_t uploaded_ = 0;
    kernels::WireBlock to_;
    std::size_t bytes_ = 0;
  };
  // Launches the table that `fill` makes, one thread at a time, and waits: all of it is on the host then. Where the GPU fails nothing
  // is finite, no more is done, and catch_up() says so.
  Seen take_turn(const std::function<void(Turn&, kernels::cuda::Table&)>& fill) noexcept;

 private:
  const kernels::cuda::Gpu& gpu() const { return device_->gpu(); }
  // New memory may have been another tensor's: what uses it waits for what torch's current stream was given. So a block's first
  // averaging may wait for backward.
  void fit(Device::Room& room, std::size_t bytes);

  const std::shared_ptr<Device> device_;
  kernels::cuda::Event torchs_, own_;  // of the training thread
  std::mutex mutex_;                   // guards what follows
  std::string failure_;
  std::array<Device::Room, 2> arrivals_;
  Device::Room sent_, table_, counters_;
  kernels::cuda::Event fresh_, uploaded_, over_;
};

class HeldOnDevice final : public HeldBlock {
 public:
  // x: the block's values, on the stream's device; they are this object's from now on. x~ is x, y is 0.
  HeldOnDevice(std::shared_ptr<GossipStream> stream, at::Tensor x, bool momentum, bool tracks);
  ~HeldOnDevice() override;

  Held now() override;
  void mix_momentum(double eta_tau) override;
  bool send(double eta_tau, const kernels::WireBlock& to, float times) override;
  kernels::Measured average(double eta_tau, float alpha, float alpha_tilde, const SentBlock& q_j,
                            const SentBlock& q_i) override;
  void move_towards(const SentBlock& q, float share) override;
  void add_tracked(const SentBlock& q, float share) override;

  // --- on the training thread, in a call of Gossip's for this block
  // As Kernels::renew, after the momentum: what was done to the block's parameters goes to x and x~, times `scale`, and x to them
  // and `taken`.
  void renew(const Block& block, const at::Tensor& taken, const Held& held, double scale);
  void begin(const at::Tensor& x);  // x and x~ are these, y is 0
  // Calls f, which may write it, between what torch's current stream has been given so far and what it is given then.
  void x_tilde(const std::function<void(const at::Tensor&)>& f) { with(x_tilde_, f); }
  void y(const std::function<void(const at::Tensor&)>& f) { with(y_, f); }

 private:
  float* x() const { return x_.mutable_data_ptr<float>(); }
  float* x_tilde() const { return x_tilde_.defined() ? x_tilde_.mutable_data_ptr<float>() : nullptr; }
  std::size_t size() const { return static_cast<std::size_t>(x_.numel()); }
  float* y() const { return y_.defined() ? y_.mutable_data_ptr<float>() : nullptr; }
  void with(const at::Tensor& values, const std::function<void(const at::Tensor&)>& f);
  void momentum(kernels::cuda::Table& table, double eta_tau) const;
  void mix(kernels::cuda::Table& table, float* to, const kernels::Mix& neighbour) const;

  const std::shared_ptr<GossipStream> stream_;
  const at::Tensor x_, x_tilde_, y_;
  const at::Tensor zeros_;  // where it tracks: y += share (q_y - 0)
  Device::Room renewals_;
  double weight_ = 1;
};

}  // namespace starling
