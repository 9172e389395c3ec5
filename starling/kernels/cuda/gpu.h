// One GPU, by CUDA's driver interface: the update loaded on it, copies beside its computation, and
// events in its streams. The driver's library is loaded when the first Gpu is made. Starling needs
// no part of CUDA to build, or to run on the CPU. A Gpu uses the device's primary context, so that
// it shares memory and streams with torch.
//
//   stream   a queue of work on the GPU; its work is done in order. Null: the default one
//
// All methods may be called from any thread, and leave its current context as it was. They throw
// Error in one line, with the GPU's number, if the driver reports a failure. After most failures
// all later calls fail too. None waits for the GPU, except where stated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "starling/kernels/cuda/program.h"
#include "starling/kernels/cuda/table.h"

namespace starling::kernels::cuda {

struct DriverFunctions;  // the driver functions in use

using Stream = void*;  // CUstream

class Gpu {
 public:
  // `number` is torch's. Takes the update from the cache of compiled programs, or compiles it
  // (seconds). Throws Error if there is no driver, no such GPU, one older than sm_80, or no NVRTC
  // that knows it.
  explicit Gpu(int number, const std::string& driver = "libcuda.so.1");
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // Why the compiled update could not be cached, so that the next process compiles it again; empty
  // if it is cached.
  const std::string& not_kept() const { return not_kept_; }
  // Streams of its own, so that copies in both directions, and gossip, run beside torch's
  // computation.
  Stream uploads() const { return uploads_; }
  Stream downloads() const { return downloads_; }
  Stream gossip() const { return gossip_; }
  // Memory of the host should be page-locked. Otherwise the calling thread waits for the stream.
  // Host to device.
  void upload(void* to, const void* from, std::size_t bytes, Stream stream) const;
  // Device to host.
  void download(void* to, const void* from, std::size_t bytes, Stream stream) const;

  // Starts a launch of a table in the device's memory. *not_finite as in update.cuh; null for
  // renewals alone.
  void launch(const Table::Launch& launch, const std::byte* table, std::uint32_t* not_finite,
              Stream stream) const;

  // After a failure: waits for the work in the streams above and in this other one, so that its
  // memory may be freed. Returns if the driver refuses that twice: then the GPU does no more.
  void finish(Stream other) const noexcept;

 private:
  friend class Event;
  class Scope;
  explicit Gpu(std::unique_ptr<const DriverFunctions> driver);

  std::unique_ptr<const DriverFunctions> driver_;
  std::string not_kept_;
  int device_ = 0;           // CUdevice
  void* context_ = nullptr;  // CUcontext
  void* module_ = nullptr;
  std::array<void*, kUpdateEntries.size()> entries_{};
  Stream uploads_ = nullptr, downloads_ = nullptr, gossip_ = nullptr;
};

// A place in a stream. Each record() moves it. The Gpu must outlive it.
class Event {
 public:
  explicit Event(const Gpu& gpu);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream stream);
  // Later work in this stream waits for the place.
  void make_wait(Stream stream) const;
  // The calling thread sleeps until the place is reached. Throws Error if the GPU has failed.
  void wait() const;

 private:
  const Gpu& gpu_;
  void* event_ = nullptr;
};

}  // namespace starling::kernels::cuda
