// One GPU, by CUDA's driver interface: the update loaded on it, copies beside what it computes, and places in its streams to
// wait for. The driver's library is loaded when the first Gpu is made: nothing of CUDA is needed to build Starling, or to run it
// on the CPU. It has the device's primary context, so that memory and streams are those of torch.
//
//   stream   a queue of work on the GPU; what is in one is done in order. Null: the default one
//
// All methods may be called from any thread, leave its current context as it was, and throw Error in one line where the driver
// says that something failed: then all that follows fails too. None waits for the GPU, except where stated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "starling/kernels/cuda/program.h"
#include "starling/kernels/cuda/table.h"

namespace starling::kernels::cuda {

struct DriverFunctions;  // what is called of it

using Stream = void*;  // CUstream

class Gpu {
 public:
  // The number is torch's. Takes the update from the cache of compiled programs, or compiles it (seconds). Throws Error where
  // there is no driver, no such GPU, one older than sm_80, or no NVRTC that knows it.
  explicit Gpu(int number, const std::string& driver = "libcuda.so.1");
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // Why the compiled update could not be kept on the disk, so that the next process compiles it again; empty where it is.
  const std::string& not_kept() const { return not_kept_; }
  // Streams of its own, so that copies both ways, and gossip, go on beside what torch computes.
  Stream uploads() const { return uploads_; }
  Stream downloads() const { return downloads_; }
  Stream gossip() const { return gossip_; }
  // Memory of the host should be page-locked, else the calling thread waits for the stream.
  void upload(void* to, const void* from, std::size_t bytes, Stream stream) const;    // host to device
  void download(void* to, const void* from, std::size_t bytes, Stream stream) const;  // device to host

  // Starts a launch of a table that lies on the device. *not_finite as in update.cuh; null for
  // renewals alone.
  void launch(const Table::Launch& launch, const std::byte* table, std::uint32_t* not_finite,
              Stream stream) const;

 private:
  friend class Event;
  class Scope;

  std::unique_ptr<const DriverFunctions> driver_;
  std::string not_kept_;
  int device_ = 0;           // CUdevice
  void* context_ = nullptr;  // CUcontext
  void* module_ = nullptr;
  std::array<void*, kUpdateEntries.size()> entries_{};
  Stream uploads_ = nullptr, downloads_ = nullptr, gossip_ = nullptr;
};

// A place in a stream, which is set anew by each record(). The Gpu must outlive it.
class Event {
 public:
  explicit Event(const Gpu& gpu);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream stream);
  // What is put into this stream from now on waits for the place.
  void hold(Stream stream) const;
  // The calling thread waits, asleep. Throws Error where the GPU has failed.
  void wait() const;

 private:
  const Gpu& gpu_;
  void* event_ = nullptr;
};

}  // namespace starling::kernels::cuda
