#include "starling/kernels/cuda/gpu.h"

#include <string_view>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/library.h"
#include "starling/kernels/cuda/cubin.h"
#include "starling/kernels/cuda/nvrtc.h"

namespace starling::kernels::cuda {

// The driver's C interface, as cuda.h of CUDA 12 and 13 declares it: CUresult and CUdevice are
// ints, CUdeviceptr is 64 bits wide, the others are pointers. Members have the names of the
// library's exports.
struct DriverFunctions : LoadedLibrary {
  DriverFunctions(void* library, const std::string& whose, int number)
      : LoadedLibrary(library, whose), gpu(number) {}
  const int gpu;  // torch's number of the one that is worked on
  using Size = std::size_t;
  using Address = unsigned long long;
  int (*cuInit)(unsigned) = find("cuInit");
  int (*cuGetErrorString)(int, const char**) = find("cuGetErrorString");
  int (*cuDeviceGet)(int*, int) = find("cuDeviceGet");
  int (*cuDeviceGetAttribute)(int*, int, int) = find("cuDeviceGetAttribute");
  int (*cuDevicePrimaryCtxRetain)(void**, int) = find("cuDevicePrimaryCtxRetain");
  int (*cuDevicePrimaryCtxRelease_v2)(int) = find("cuDevicePrimaryCtxRelease_v2");
  int (*cuCtxPushCurrent_v2)(void*) = find("cuCtxPushCurrent_v2");
  int (*cuCtxPopCurrent_v2)(void**) = find("cuCtxPopCurrent_v2");
  int (*cuModuleLoadData)(void**, const void*) = find("cuModuleLoadData");
  int (*cuModuleUnload)(void*) = find("cuModuleUnload");
  int (*cuModuleGetFunction)(void**, void*, const char*) = find("cuModuleGetFunction");
  int (*cuLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                        void**, void**) = find("cuLaunchKernel");
  int (*cuMemcpyHtoDAsync_v2)(Address, const void*, Size, void*) = find("cuMemcpyHtoDAsync_v2");
  int (*cuMemcpyDtoHAsync_v2)(void*, Address, Size, void*) = find("cuMemcpyDtoHAsync_v2");
  int (*cuStreamCreate)(void**, unsigned) = find("cuStreamCreate");
  int (*cuStreamDestroy_v2)(void*) = find("cuStreamDestroy_v2");
  int (*cuStreamSynchronize)(void*) = find("cuStreamSynchronize");
  int (*cuStreamWaitEvent)(void*, void*, unsigned) = find("cuStreamWaitEvent");
  int (*cuEventCreate)(void**, unsigned) = find("cuEventCreate");
  int (*cuEventDestroy_v2)(void*) = find("cuEventDestroy_v2");
  int (*cuEventRecord)(void*, void*) = find("cuEventRecord");
  int (*cuEventSynchronize)(void*) = find("cuEventSynchronize");
  int (*cuThreadExchangeStreamCaptureMode)(int*) = find("cuThreadExchangeStreamCaptureMode");

  void must(int result, std::string_view what) const {
    if (result == 0) return;
    const char* text = nullptr;
    if (cuGetErrorString(result, &text) != 0 || text == nullptr) text = "unknown";
    throw Error(fmt::format("CUDA: GPU {}: {}: error {}, {}", gpu, what, result, text));
  }
};

namespace {

using Address = DriverFunctions::Address;

// The numbers of cuda.h.
// CU_STREAM_NON_BLOCKING: the default stream does not wait for it.
constexpr unsigned kNonBlockingStream = 1;
// CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING.
constexpr unsigned kAsleep = 1, kWithoutTime = 2;
constexpr int kRelaxed = 2;              // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...

constexpr int kOldest = 80;  // architecture; warps of older ones have no reductions (update.cuh)

// All functions of the driver, which is never unloaded, for this GPU.
std::unique_ptr<const DriverFunctions> load_driver(const std::string& file, int gpu) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(fmt::format("CUDA's driver cannot be loaded: {}", loader_trouble()));
  return std::make_unique<DriverFunctions>(library, fmt::format("{} is not a driver of CUDA 12 or 13", file),
                                           gpu);
}

Address address_of(const void* pointer) {
  return static_cast<Address>(reinterpret_cast<std::uintptr_t>(pointer));
}

// Whether a call of the driver's succeeds, the second time at the latest. For clean-ups, which must
// not give up for a failure that does not last.
template <class F>
bool done_by(const F& call) {
  return call() == 0 || call() == 0;
}

}  // namespace

// While it lives, this GPU's context is the thread's.
class Gpu::Scope {
 public:
  explicit Scope(const Gpu& gpu) : driver(*gpu.driver_) {
    driver.must(driver.cuCtxPushCurrent_v2(gpu.context_), "taking the context");
  }
  ~Scope() {
    void* popped = nullptr;
    driver.cuCtxPopCurrent_v2(&popped);
  }
  Scope(const Scope&) = delete;
  const DriverFunctions& driver;
};

Gpu::Gpu(std::unique_ptr<const DriverFunctions> driver) : driver_(std::move(driver)) {}

// If it throws, the destructor releases what there is, since the other constructor is done.
Gpu::Gpu(int number, const std::string& driver) : Gpu(load_driver(driver, number)) {
  const DriverFunctions& cu = *driver_;
  cu.must(cu.cuInit(0), "starting the driver");
  cu.must(cu.cuDeviceGet(&device_, number), "finding it");
  int major = 0, minor = 0;
  cu.must(cu.cuDeviceGetAttribute(&major, kMajor, device_), "asking for the architecture");
  cu.must(cu.cuDeviceGetAttribute(&minor, kMinor, device_), "asking for the architecture");
  if (major < kOldest / 10)
    throw Error(fmt::format("GPU {} is of architecture sm_{}{}: allowed are sm_{} and newer", number, major,
                            minor, kOldest));
  const Cubin cubin = cubin_of(Nvrtc(), update_program(), 10 * major + minor);
  not_kept_ = cubin.trouble;
  cu.must(cu.cuDevicePrimaryCtxRetain(&context_, device_), "taking the primary context");
  const Scope scope(*this);
  cu.must(cu.cuModuleLoadData(&module_, cubin.bytes.data()), "loading the update");
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::string name(kUpdateEntries[i]);
    cu.must(cu.cuModuleGetFunction(&entries_[i], module_, name.c_str()), name);
  }
  cu.must(cu.cuStreamCreate(&uploads_, kNonBlockingStream), "making a stream");
  cu.must(cu.cuStreamCreate(&downloads_, kNonBlockingStream), "making a stream");
  cu.must(cu.cuStreamCreate(&gossip_, kNonBlockingStream), "making a stream");
}

// At the end of a process the driver may have ended first, so its results are ignored.
Gpu::~Gpu() {
  const DriverFunctions& cu = *driver_;
  if (context_ == nullptr || !done_by([&] { return cu.cuCtxPushCurrent_v2(context_); })) return;
  for (const Stream stream : {uploads_, downloads_, gossip_}) {
    if (stream != nullptr) cu.cuStreamDestroy_v2(stream);
  }
  if (module_ != nullptr) cu.cuModuleUnload(module_);
  void* popped = nullptr;
  cu.cuCtxPopCurrent_v2(&popped);
  cu.cuDevicePrimaryCtxRelease_v2(device_);
}

void Gpu::finish(Stream other) const noexcept {
  const DriverFunctions& cu = *driver_;
  if (!done_by([&] { return cu.cuCtxPushCurrent_v2(context_); })) return;
  int mode = kRelaxed;  // as in Event::wait()
  const bool relaxed = done_by([&] { return cu.cuThreadExchangeStreamCaptureMode(&mode); });
  for (const Stream stream : {uploads_, downloads_, gossip_, other})
    done_by([&] { return cu.cuStreamSynchronize(stream); });
  if (relaxed) done_by([&] { return cu.cuThreadExchangeStreamCaptureMode(&mode); });
  void* popped = nullptr;
  cu.cuCtxPopCurrent_v2(&popped);
}

void Gpu::upload(void* to, const void* from, std::size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  const Scope scope(*this);
  scope.driver.must(scope.driver.cuMemcpyHtoDAsync_v2(address_of(to), from, bytes, stream),
                    "a copy to the GPU");
}

void Gpu::download(void* to, const void* from, std::size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  const Scope scope(*this);
  scope.driver.must(scope.driver.cuMemcpyDtoHAsync_v2(to, address_of(from), bytes, stream),
                    "a copy from the GPU");
}

void Gpu::launch(const Table::Launch& launch, const std::byte* table, std::uint32_t* not_finite,
                 Stream stream) const {
  const Scope scope(*this);
  const std::byte* segments = table + launch.segments;
  const std::byte* mixes = table;
  std::uint32_t count = launch.count;
  std::array<void*, 4> arguments{&segments, &count, &mixes, &not_finite};
  scope.driver.must(scope.driver.cuLaunchKernel(entries_[launch.entry], launch.blocks, 1, 1, kThreads, 1, 1,
                                                0, stream, arguments.data(), nullptr),
                    "launching the update");
}

Event::Event(const Gpu& gpu) : gpu_(gpu) {
  const Gpu::Scope scope(gpu);
  scope.driver.must(scope.driver.cuEventCreate(&event_, kAsleep | kWithoutTime), "making an event");
}

Event::~Event() { gpu_.driver_->cuEventDestroy_v2(event_); }

void Event::record(Stream stream) {
  const Gpu::Scope scope(gpu_);
  scope.driver.must(scope.driver.cuEventRecord(event_, stream), "recording an event");
}

void Event::make_wait(Stream stream) const {
  const Gpu::Scope scope(gpu_);
  scope.driver.must(scope.driver.cuStreamWaitEvent(stream, event_, 0), "waiting for an event");
}

void Event::wait() const {
  const Gpu::Scope scope(gpu_);
  // While another thread records a graph (torch.cuda.graph), a thread may wait only if it declares
  // its work independent.
  int mode = kRelaxed;
  scope.driver.must(scope.driver.cuThreadExchangeStreamCaptureMode(&mode), "setting the capture mode");
  const int result = scope.driver.cuEventSynchronize(event_);
  done_by([&] { return scope.driver.cuThreadExchangeStreamCaptureMode(&mode); });
  scope.driver.must(result, "the GPU's work");
}

}  // namespace starling::kernels::cuda
