// A mock CUDA driver: a library with its interface, and a GPU whose memory is the host's. It runs
// the update as the ordinary compiler compiles it. The whole path through streams, copies and
// events can therefore be tested without a GPU.
//
// It is as lazy as a GPU may be. Work in a stream runs only when a thread waits for an event behind
// it (cuEventSynchronize), or drains the stream. An order that is not enforced is therefore not
// kept, and a premature read gets stale data.
#include "starling/kernels/update.h"

// clang-format off: the device's words come before the program that uses them.
#include "tests/kernels/cuda/device.h"
#include "starling/kernels/cuda/program.cuh"
// clang-format on

#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "starling/kernels/cuda/program.h"

namespace {

using namespace starling::kernels;
using namespace starling::kernels::cuda;

std::mutex mutex;  // guards all of it
bool fails = false;
std::size_t unfinished = 0;         // copies and launches
thread_local int capture_mode = 0;  // global
thread_local std::size_t waits = 0;

// The work of a stream, and the finished part of it.
struct Queue {
  std::deque<std::function<void()>> waiting;
  std::uint64_t given = 0, done = 0;
  void put(std::function<void()> work) { waiting.push_back(std::move(work)), ++given; }
  void run_to(std::uint64_t end) {
    while (done < end) {
      const auto work = std::move(waiting.front());
      waiting.pop_front();
      ++done;
      work();
    }
  }
};
Queue default_stream;
Queue& queue(void* stream) { return stream == nullptr ? default_stream : *static_cast<Queue*>(stream); }

// Copies and launches.
void put(void* stream, std::function<void()> work) {
  ++unfinished;
  queue(stream).put([work = std::move(work)] {
    --unfinished;
    work();
  });
}

// A place in a queue, as of the last record.
struct Place {
  Queue* in = nullptr;
  std::uint64_t end = 0;
};

template <auto kEntry>
void run_entry(unsigned blocks, unsigned threads, const void* segments, std::uint32_t count,
               const void* mixes, std::uint32_t* not_finite) {
  static device::Warp warp;
  auto body = [&] {
    [&]<class Row>(void (*entry)(const Row*, std::uint32_t, const Mix*, std::uint32_t*)) {
      entry(static_cast<const Row*>(segments), count, static_cast<const Mix*>(mixes), not_finite);
    }(kEntry);
  };
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (std::uint32_t thread = 0; thread < threads; thread += device::Warp::kLanes)
      warp.run([](void* f) { (*static_cast<decltype(body)*>(f))(); }, &body, thread, threadIdx);
  }
}
using Entry = void (*)(unsigned, unsigned, const void*, std::uint32_t, const void*, std::uint32_t*);
#define STARLING_STEP(entry, type) run_entry<entry>,
constexpr std::array<Entry, kUpdateEntries.size()> kEntries{STARLING_EACH_STEP(STARLING_STEP)
                                                                run_entry<starling_renew>};
#undef STARLING_STEP

template <class T>
T& at(void* pointer) {
  return *static_cast<T*>(pointer);
}

}  // namespace

extern "C" {
// For tests: drains the default stream, as torch's next work would see it; and makes the GPU fail.
void other_driver_drain() {
  const std::lock_guard lock(mutex);
  default_stream.run_to(default_stream.given);
}
void other_driver_fail(bool now) {
  const std::lock_guard lock(mutex);
  fails = now;
}
// The copies and launches that the GPU has not done yet. How often this thread has waited for it.
std::size_t other_driver_unfinished() {
  const std::lock_guard lock(mutex);
  return unfinished;
}
std::size_t other_driver_waits() { return waits; }

int cuInit(unsigned) { return 0; }
int cuGetErrorString(int error, const char** text) {
  *text = error == 719 ? "unspecified launch failure" : "invalid device ordinal";
  return 0;
}
int cuDeviceGet(int* device, int number) { return *device = number, number == 0 ? 0 : 101; }
int cuDeviceGetAttribute(int* value, int attribute, int) { return *value = attribute == 75 ? 9 : 0, 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &mutex, 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuModuleLoadData(void** module, const void*) { return *module = &mutex, 0; }
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** function, void*, const char* name) {
  for (std::size_t i = 0; i < kUpdateEntries.size(); ++i) {
    if (kUpdateEntries[i] == name) return *function = const_cast<Entry*>(&kEntries[i]), 0;
  }
  return 500;
}
int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned, void* stream, void** arguments, void**) {
  const std::lock_guard lock(mutex);
  put(stream, [entry = at<Entry>(function), blocks, threads, segments = at<const void*>(arguments[0]),
               count = at<std::uint32_t>(arguments[1]), mixes = at<const void*>(arguments[2]),
               not_finite = at<std::uint32_t*>(arguments[3])] {
    entry(blocks, threads, segments, count, mixes, not_finite);
  });
  return 0;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, void* stream) {
  const std::lock_guard lock(mutex);
  put(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void* stream) {
  const std::lock_guard lock(mutex);
  put(stream, [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
  return 0;
}
int cuStreamCreate(void** stream, unsigned) { return *stream = new Queue, 0; }
int cuStreamDestroy_v2(void* stream) { return delete static_cast<Queue*>(stream), 0; }
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  const std::lock_guard lock(mutex);
  const Place place = at<Place>(event);
  queue(stream).put([place] {
    if (place.in != nullptr) place.in->run_to(place.end);
  });
  return 0;
}
int cuEventCreate(void** event, unsigned) { return *event = new Place, 0; }
int cuEventDestroy_v2(void* event) { return delete static_cast<Place*>(event), 0; }
int cuEventRecord(void* event, void* stream) {
  const std::lock_guard lock(mutex);
  at<Place>(event) = {&queue(stream), queue(stream).given};
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(capture_mode, *mode), 0; }
int cuEventSynchronize(void* event) {
  if (capture_mode != 2) return 900;  // as if another thread recorded a graph all the time
  const std::lock_guard lock(mutex);
  ++waits;
  if (fails) return 719;
  const Place place = at<Place>(event);
  if (place.in != nullptr) place.in->run_to(place.end);
  return 0;
}
}
