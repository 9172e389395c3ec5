// The optimizer's interface to GPUs. device.cpp and held_on_device.cpp implement it on
// kernels/cuda/. A build without CUDA (STARLING_CUDA=OFF) uses no_cuda.cpp, which refuses. The rest
// of the optimizer includes no other header of this folder.
//
// Parameters and state of a block are in the GPU's memory. The exchange's data is in the host's
// memory:
//
//   arrivals -- copied --> page-locked -- uploaded --> update -- downloaded --> page-locked
//     -- copied --> wire block, start()
//
// step() puts this into streams, and does not wait for the GPU, where backward() may still run. The
// calling thread copies the arrivals. The update is in torch's current stream, behind backward().
// The device's own thread does the rest when the GPU has come so far. Readers of the result on the
// host wait for it. The asynchronous schemes differ: see GossipStream.
//
// The vectors that a scheme keeps beside the parameters are on the GPU too, and pass like them.
// Only a scheme whose algorithm needs the host reads the parameters there: schemes/host_blocks.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/exchange/exchange.h"
#include "starling/gossip/held_block.h"
#include "starling/kernels/update.h"

namespace starling {

struct Block;
class Device;

// The passes of one block over a GPU.
class OnDevice {
 public:
  virtual ~OnDevice() = default;  // waits, as end() does

  virtual const std::shared_ptr<Device>& device() const = 0;
  // Passes of a vector beside the block's parameters.
  virtual std::shared_ptr<OnDevice> beside() = 0;
  // Waits until all passes of the block, and of the vectors beside it, are over and their `then`
  // has returned. Throws Error if the GPU has failed.
  virtual void wait() = 0;
  // wait(), but ignores a failure.
  virtual void end() noexcept = 0;

  // Uploads what arrived for a block of this length, for several passes. Returns the same by the
  // addresses on the device, which are valid until the next call. Waits as wait() does.
  virtual std::vector<Arrival> upload(std::span<const Arrival> arrived, std::size_t length) = 0;

  // A stretch of memory to copy between the device and the host, where it should be page-locked.
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  // Copy these after all that torch's current stream was given so far, and wait once for all.
  virtual void to_host(std::span<const Copy> copies) = 0;
  virtual void from_host(std::span<const Copy> copies) = 0;

  // The arguments of begin(), by their addresses on the device.
  struct There {
    std::vector<Arrival> arrived;
    Outgoing outgoing;
    std::uint32_t* sum;           // of what is sent
    kernels::Measured* measured;  // by arrival
  };
  // Begins a pass over a block of this length, and uploads what arrived and is not on the device.
  // Waits for the last pass that sends, if this one does, else for the last pass that does not.
  virtual There begin(std::span<const Arrival> arrived, const Outgoing& outgoing, std::size_t length) = 0;
  // Adds a stretch to the pass that has begun: the arguments of Kernels::update, on the device.
  virtual void add(const kernels::Step& step, std::span<const kernels::Mix> mixes,
                   const kernels::Parameters& x, kernels::Gradient g, kernels::RuleState state,
                   const kernels::WireBlock& outgoing, std::size_t n) = 0;
  // The results of a pass, over all stretches or some of them.
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
  // Starts the pass that has begun. When it is over, and what it sends lies in the host's
  // outgoing.values, the device's thread calls then(seen).
  virtual void launch(std::function<void(const Seen&)> then) = 0;
};

// A block that gossip holds on a GPU. The training thread calls what follows, in a call of Gossip's
// for this block.
class HeldOnDevice : public HeldBlock {
 public:
  // As Kernels::renew, after the momentum: adds the change of the block's parameters since `taken`,
  // times `scale`, to x and x~, then copies x to the parameters and to `taken`.
  virtual void renew(const Block& block, const at::Tensor& taken, const Held& held, double scale) = 0;
  // Sets x and x~ to these values, and y to 0.
  virtual void begin(const at::Tensor& x) = 0;
  // Calls f, which may write the tensor, after all that torch's current stream was given so far,
  // and before all that it is given then.
  virtual void x_tilde(const std::function<void(const at::Tensor&)>& f) = 0;
  virtual void y(const std::function<void(const at::Tensor&)>& f) = 0;
};

// Gossip's stream on one GPU, for one optimizer: beside torch's, so that averages go on during
// backward. The training thread calls this.
class GossipStream {
 public:
  virtual ~GossipStream() = default;
  // Waits until torch's current stream has done all that it was given. Throws Error if the GPU has
  // failed, in an average too.
  virtual void wait_for_torch() = 0;
  // Work that torch's current stream is given from now on comes after this stream's.
  virtual void let_torch_follow() = 0;
  // Holds a block: takes x, on this GPU, as its own. x~ is x, y is 0.
  virtual std::unique_ptr<HeldOnDevice> make_held_block(at::Tensor x, const Beside& beside) = 0;
};

// A GPU, and a thread that waits for it. Once the GPU or its driver has failed, every call that
// needs it throws Error with that first failure, and none begins work.
class Device {
 public:
  virtual ~Device() = default;  // waits for all that it was given
  virtual std::shared_ptr<OnDevice> passes() = 0;
  virtual std::shared_ptr<GossipStream> gossip() = 0;
  // Why the compiled update could not be cached on disk; empty if it could.
  virtual const std::string& not_kept() const = 0;
  // The rank of the worker that uses it, for its errors.
  virtual void set_rank(int rank) = 0;
};

// One of torch's CUDA devices. Throws Error if Starling cannot use it.
std::shared_ptr<Device> cuda_device(at::Device device);

// In a program that links torch's libraries for the CPU only: loads those for CUDA that lie beside
// them. Call it before the first backward() of the process, since torch accepts no later device.
// Returns in one line why there is no CUDA here; empty if there is. Python's torch has loaded them.
// Torch also gives that answer from then on if it was asked for CUDA before, as by a seed.
std::string find_cuda();

}  // namespace starling
