// A mock CUDA driver: a library with its interface, and a GPU whose memory is the host's. It runs
// the update as the ordinary compiler compiles it. The whole path through streams, copies and
// events can therefore be tested without a GPU.
//
// It is as lazy as a GPU may be. Work in a stream runs only when a thread waits for an event behind
// it (cuEventSynchronize), or drains the stream. An order that is not enforced is therefore not
// kept, and a premature read gets stale data.
//
// A test may choose a call that fails, whichever it is: that one alone, or all from it on, as after
// a fault of the GPU, which then drops the work that it has not done.
#include "starling/kernels/update.h"

// clang-format off: the device's words come before the program that uses them.
#include "tests/kernels/cuda/device.h"
#include "starling/kernels/cuda/program.cuh"
// clang-format on

#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

#include "starling/kernels/cuda/program.h"

namespace {

using namespace starling::kernels;
using namespace starling::kernels::cuda;

constexpr int kFailed = 719;  // CUDA_ERROR_LAUNCH_FAILED

std::mutex mutex;  // guards all of it
bool fails = false;
int calls_to_failure = -1;  // below 0: no call fails
bool fails_for_good = false, dead = false;
const char* failed_call = "";
std::size_t unfinished = 0;  // copies and launches
std::ptrdiff_t held = 0;     // contexts, modules, streams and events
constexpr int kRelaxed = 2;
thread_local int capture_mode = 0;  // global
thread_local std::size_t waits = 0;

// The work of a stream, and the finished part of it.
struct Queue {
  std::deque<std::function<void()>> waiting;
  std::uint64_t given = 0, done = 0;
  void put(std::function<void()> work) { waiting.push_back(std::move(work)), ++given; }
  void drop() { waiting.clear(), done = given; }
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
std::set<Queue*> streams;
Queue& queue(void* stream) { return stream == nullptr ? default_stream : *static_cast<Queue*>(stream); }

// Copies and launches.
void put(void* stream, std::function<void()> work) {
  ++unfinished;
  queue(stream).put([work = std::move(work)] {
    --unfinished;
    work();
  });
}

// Whether this call of the driver fails.
bool call_fails(const char* name) {
  const std::lock_guard lock(mutex);
  if (dead) return true;
  if (calls_to_failure < 0 || calls_to_failure-- > 0) return false;
  failed_call = name;
  dead = fails_for_good;
  if (!dead) return true;
  default_stream.drop();
  for (Queue* const stream : streams) stream->drop();
  unfinished = 0;
  return true;
}
#define STARLING_MAY_FAIL \
  if (call_fails(__func__)) return kFailed

// Counts a thing that is made or released; the latter even if the call fails.
int made(int count = 1) {
  const std::lock_guard lock(mutex);
  held += count;
  return 0;
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
// So many calls succeed, then one fails: all that follow it too, with for_good. Below 0: no call
// fails, and the GPU works again.
void other_driver_fail_after(int calls, bool for_good) {
  const std::lock_guard lock(mutex);
  calls_to_failure = calls, fails_for_good = for_good, dead = false, failed_call = "";
}
// The call that was made to fail; "" if none was.
const char* other_driver_failed_call() {
  const std::lock_guard lock(mutex);
  return failed_call;
}
// The contexts, modules, streams and events that there are.
std::size_t other_driver_held() {
  const std::lock_guard lock(mutex);
  return static_cast<std::size_t>(held);
}
// The copies and launches that the GPU has not done yet. How often this thread has waited for it.
std::size_t other_driver_unfinished() {
  const std::lock_guard lock(mutex);
  return unfinished;
}
std::size_t other_driver_waits() { return waits; }

int cuInit(unsigned) {
  STARLING_MAY_FAIL;
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == kFailed ? "unspecified launch failure" : "invalid device ordinal";
  return 0;
}
int cuDeviceGet(int* device, int number) {
  STARLING_MAY_FAIL;
  return *device = number, number == 0 ? 0 : 101;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  STARLING_MAY_FAIL;
  return *value = attribute == 75 ? 9 : 0, 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  STARLING_MAY_FAIL;
  return *context = &mutex, made();
}
int cuDevicePrimaryCtxRelease_v2(int) {
  made(-1);
  STARLING_MAY_FAIL;
  return 0;
}
int cuCtxPushCurrent_v2(void*) {
  STARLING_MAY_FAIL;
  return 0;
}
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuModuleLoadData(void** module, const void*) {
  STARLING_MAY_FAIL;
  return *module = &mutex, made();
}
int cuModuleUnload(void*) {
  made(-1);
  STARLING_MAY_FAIL;
  return 0;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  STARLING_MAY_FAIL;
  for (std::size_t i = 0; i < kUpdateEntries.size(); ++i) {
    if (kUpdateEntries[i] == name) return *function = const_cast<Entry*>(&kEntries[i]), 0;
  }
  return 500;
}
int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned, void* stream, void** arguments, void**) {
  STARLING_MAY_FAIL;
  const std::lock_guard lock(mutex);
  put(stream, [entry = at<Entry>(function), blocks, threads, segments = at<const void*>(arguments[0]),
               count = at<std::uint32_t>(arguments[1]), mixes = at<const void*>(arguments[2]),
               not_finite = at<std::uint32_t*>(arguments[3])] {
    entry(blocks, threads, segments, count, mixes, not_finite);
  });
  return 0;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, void* stream) {
  STARLING_MAY_FAIL;
  const std::lock_guard lock(mutex);
  put(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void* stream) {
  STARLING_MAY_FAIL;
  const std::lock_guard lock(mutex);
  put(stream, [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
  return 0;
}
int cuStreamCreate(void** stream, unsigned) {
  STARLING_MAY_FAIL;
  made();
  auto* const queue = new Queue;
  const std::lock_guard lock(mutex);
  streams.insert(queue);
  return *stream = queue, 0;
}
int cuStreamDestroy_v2(void* stream) {
  made(-1);
  {
    const std::lock_guard lock(mutex);
    streams.erase(static_cast<Queue*>(stream));
    delete static_cast<Queue*>(stream);
  }
  STARLING_MAY_FAIL;
  return 0;
}
int cuStreamSynchronize(void* stream) {
  STARLING_MAY_FAIL;
  if (capture_mode != kRelaxed) return 900;  // as if another thread recorded a graph all the time
  const std::lock_guard lock(mutex);
  Queue& all = queue(stream);
  all.run_to(all.given);
  return 0;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  STARLING_MAY_FAIL;
  const std::lock_guard lock(mutex);
  const Place place = at<Place>(event);
  queue(stream).put([place] {
    if (place.in != nullptr) place.in->run_to(place.end);
  });
  return 0;
}
int cuEventCreate(void** event, unsigned) {
  STARLING_MAY_FAIL;
  return *event = new Place, made();
}
int cuEventDestroy_v2(void* event) {
  delete static_cast<Place*>(event);
  made(-1);
  STARLING_MAY_FAIL;
  return 0;
}
int cuEventRecord(void* event, void* stream) {
  STARLING_MAY_FAIL;
  const std::lock_guard lock(mutex);
  at<Place>(event) = {&queue(stream), queue(stream).given};
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  STARLING_MAY_FAIL;
  return std::swap(capture_mode, *mode), 0;
}
int cuEventSynchronize(void* event) {
  STARLING_MAY_FAIL;
  if (capture_mode != kRelaxed) return 900;
  const std::lock_guard lock(mutex);
  ++waits;
  if (fails) return kFailed;
  const Place place = at<Place>(event);
  if (place.in != nullptr) place.in->run_to(place.end);
  return 0;
}
}
