// A block that gossip holds, in a GPU's memory (gossip/held_block.h). All work on x and x~ is in
// one stream of the GPU, gossip's, beside torch's. Its order is that in which the threads lock the
// block:
//
//   transport's thread   uploads what came, launches, downloads what goes, and waits for that
//   training thread      in step(): waits until torch's stream has come to it; otherwise its launch
//                        would hold up all averages until backward is over. Then it launches the
//                        renewal, and torch's stream goes on behind it.
//
// So step() waits for the GPU's own work, and never for a neighbour. The transport's thread waits
// for the GPU as long as the copies of a block take.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>

#include "starling/gossip/held_block.h"
#include "starling/kernels/cuda/gpu.h"
#include "starling/kernels/cuda/table.h"
#include "starling/optim/cuda/device.h"

namespace starling {

class CudaGossip final : public GossipStream, public std::enable_shared_from_this<CudaGossip> {
 public:
  explicit CudaGossip(std::shared_ptr<CudaDevice> device);

  // --- on the training thread
  void wait_for_torch() override;
  void let_torch_follow() override;
  std::unique_ptr<HeldOnDevice> make_held_block(at::Tensor x, const Beside& beside) override;
  // The opposite of let_torch_follow(): what is launched here from now on comes after torch's
  // current stream.
  void follow_torch();
  // Launches a table, which is written to this room. Call wait_for_torch() before it, once after
  // each let_torch_follow().
  void launch(kernels::cuda::Table& table, CudaDevice::Room& room);
  // Waits for all that was uploaded and launched here. wait_for_torch() tells of a failure.
  void wait() noexcept;

  // --- on any thread
  struct Seen {
    bool finite = false;
    kernels::Measured measured{};
  };
  // The copies of one launch, from the host and to it.
  class Turn {
   public:
    // Uploads an arrival, two at most; returns its place on the device.
    kernels::Sent upload(const SentBlock& q);
    // Room on the device for so many bytes that will go to `to`.
    kernels::WireBlock download(const kernels::WireBlock& to, std::size_t bytes);
    kernels::Measured* measured() const { return &counters()->measured; }  // on the device

   private:
    friend class CudaGossip;
    struct Counters {
      std::uint32_t not_finite = 0, sum = 0;
      kernels::Measured measured{};
    };
    explicit Turn(CudaGossip& stream);
    Counters* counters() const { return reinterpret_cast<Counters*>(stream_.counters_.on_device()); }
    Seen run(kernels::cuda::Table& table);

    CudaGossip& stream_;
    std::size_t uploaded_ = 0;
    kernels::WireBlock to_;
    std::size_t bytes_ = 0;
  };
  // Launches the table that `fill` makes and waits; then its results are on the host. One thread at
  // a time. If the GPU fails, nothing is finite, later calls do nothing, and wait_for_torch()
  // throws.
  Seen take_turn(const std::function<void(Turn&, kernels::cuda::Table&)>& fill) noexcept;

 private:
  const kernels::cuda::Gpu& gpu() const { return device_->gpu(); }
  // Work on new memory waits for what torch's current stream was given, since the memory may have
  // been another tensor's. So a block's first average may wait for backward.
  void fit(CudaDevice::Room& room, std::size_t bytes);

  const std::shared_ptr<CudaDevice> device_;
  kernels::cuda::Event torchs_, own_;  // of the training thread
  std::mutex mutex_;                   // guards what follows
  std::array<CudaDevice::Room, 2> arrivals_;
  CudaDevice::Room sent_, table_, counters_;
  kernels::cuda::Event fresh_, uploaded_, downloaded_;
};

class CudaHeld final : public HeldOnDevice {
 public:
  CudaHeld(std::shared_ptr<CudaGossip> stream, at::Tensor x, const Beside& beside);
  ~CudaHeld() override;

  Held now() override;
  void mix_momentum(double eta_tau) override;
  bool send(double eta_tau, const kernels::WireBlock& to, float times) override;
  kernels::Measured average(double eta_tau, float alpha, float alpha_tilde, const SentBlock& q_j,
                            const SentBlock& q_i) override;
  void move_towards(const SentBlock& q, float share) override;
  void add_tracked(const SentBlock& q, float share) override;

  void renew(const Block& block, const at::Tensor& taken, const Held& held, double scale) override;
  void begin(const at::Tensor& x) override;
  void x_tilde(const std::function<void(const at::Tensor&)>& f) override { with(x_tilde_, f); }
  void y(const std::function<void(const at::Tensor&)>& f) override { with(y_, f); }

 private:
  float* x() const { return x_.mutable_data_ptr<float>(); }
  float* x_tilde() const { return x_tilde_.defined() ? x_tilde_.mutable_data_ptr<float>() : nullptr; }
  std::size_t size() const { return static_cast<std::size_t>(x_.numel()); }
  float* y() const { return y_.defined() ? y_.mutable_data_ptr<float>() : nullptr; }
  void with(const at::Tensor& values, const std::function<void(const at::Tensor&)>& f);
  void momentum(kernels::cuda::Table& table, double eta_tau) const;
  void mix(kernels::cuda::Table& table, float* to, const kernels::Mix& neighbour) const;

  const std::shared_ptr<CudaGossip> stream_;
  const at::Tensor x_, x_tilde_, y_;
  const at::Tensor zeros_;  // for y += share (q_y - 0)
  CudaDevice::Room renewals_;
  double weight_ = 1;
};

}  // namespace starling
