// Communicators of NCCL's library, which is loaded when they are first asked for: nothing of it is needed to build Starling.
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/library.h"
#include "starling/transport/c10d/find_cuda.h"
#include "starling/transport/c10d/nccl_transport.h"

namespace starling {
namespace {

// NCCL's interface in C, as nccl.h of NCCL 2.14 and newer declares it: ncclResult_t and ncclDataType_t are ints, ncclComm_t is a
// pointer. Members have the names of what the library exports.
struct Nccl {
  struct UniqueId {
    char bytes[128];
  };
  // That of 2.14, of which newer ones take what is there.
  struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 21400;
    int blocking = 0;  // no call waits for the other worker
  };
  static constexpr int kInProgress = 7, kUint8 = 1;

  int (*ncclGetVersion)(int*);
  int (*ncclGetUniqueId)(UniqueId*);
  int (*ncclCommInitRankConfig)(void**, int, UniqueId, int, Config*);
  int (*ncclCommGetAsyncError)(void*, int*);
  int (*ncclCommAbort)(void*);
  int (*ncclSend)(const void*, std::size_t, int, int, void*, void*);
  int (*ncclRecv)(void*, std::size_t, int, int, void*, void*);
  const char* (*ncclGetErrorString)(int);
  const char* (*ncclGetLastError)(void*);

  void must(int result, std::string_view what) const {
    if (result != 0 && result != kInProgress)
      throw Error(
          fmt::format("NCCL: {}: {} {}", what, ncclGetErrorString(result), ncclGetLastError(nullptr)));
  }
};

Nccl load() {
  // With torch's libraries for CUDA it is there already.
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(fmt::format("NCCL cannot be loaded: {}", loader_trouble()));
  Nccl nccl{};
  const std::string whose = "libnccl.so.2 is older than NCCL 2.14";
#define STARLING_FIND(name) find_function(library, #name, nccl.name, whose)
  STARLING_FIND(ncclGetVersion);
  STARLING_FIND(ncclGetUniqueId);
  STARLING_FIND(ncclCommInitRankConfig);
  STARLING_FIND(ncclCommGetAsyncError);
  STARLING_FIND(ncclCommAbort);
  STARLING_FIND(ncclSend);
  STARLING_FIND(ncclRecv);
  STARLING_FIND(ncclGetErrorString);
  STARLING_FIND(ncclGetLastError);
#undef STARLING_FIND
  return nccl;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Nccl& nccl, c10::Device device, const Communicators::Id& id, int end)
      : nccl_(nccl),
        stream_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device)),
        peer_(1 - end) {
    const c10::StreamGuard on_the_device(stream_);
    Nccl::UniqueId name;
    std::memcpy(name.bytes, id.data(), id.size());
    Nccl::Config config;
    nccl_.must(nccl_.ncclCommInitRankConfig(&communicator_, 2, name, end, &config), "joining a worker");
  }
  ~NcclCommunicator() override { end(); }

  void send(std::span<const std::byte> from) override {
    const c10::StreamGuard ours(stream_);
    const at::Tensor piece = on_the_gpu(from.size());
    piece.copy_(on_the_host({const_cast<std::byte*>(from.data()), from.size()}));
    finish([&] {
      return nccl_.ncclSend(piece.const_data_ptr(), from.size(), Nccl::kUint8, peer_, communicator_,
                            stream_.native_handle());
    });
  }
  void receive(std::span<std::byte> to) override {
    const c10::StreamGuard ours(stream_);
    const at::Tensor piece = on_the_gpu(to.size());
    finish([&] {
      return nccl_.ncclRecv(piece.mutable_data_ptr(), to.size(), Nccl::kUint8, peer_, communicator_,
                            stream_.native_handle());
    });
    on_the_host(to).copy_(piece);
  }
  void end() override {
    const std::lock_guard lock(mutex_);
    if (communicator_ != nullptr) nccl_.ncclCommAbort(communicator_);
    communicator_ = nullptr;
  }

 private:
  at::Tensor on_the_gpu(std::size_t bytes) const {
    return at::empty({static_cast<std::int64_t>(bytes)},
                     at::TensorOptions(at::kByte).device(stream_.device()));
  }
  static at::Tensor on_the_host(std::span<std::byte> bytes) {
    return at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
  }
  // Begins an operation once the communicator is there, and waits for its end on the GPU.
  template <class Begin>
  void finish(const Begin& begin) {
    while (in_progress()) doze();
    {
      const std::lock_guard lock(mutex_);
      must_stand();
      nccl_.must(begin(), "a piece");
    }
    try {
      while (in_progress() || !stream_.query()) doze();
    } catch (...) {
      end();  // its memory goes next
      throw;
    }
  }
  bool in_progress() {
    const std::lock_guard lock(mutex_);
    must_stand();
    int state = 0;
    nccl_.must(nccl_.ncclCommGetAsyncError(communicator_, &state), "the state of a worker");
    nccl_.must(state, "a worker");
    return state == Nccl::kInProgress;
  }
  void must_stand() const {
    if (communicator_ == nullptr) throw Error("NCCL: aborted");
  }
  static void doze() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

  const Nccl& nccl_;
  const c10::Stream stream_;
  const int peer_;
  std::mutex mutex_;  // guards communicator_ against end() by another thread
  void* communicator_ = nullptr;
};

class NcclCommunicators final : public Communicators {
 public:
  explicit NcclCommunicators(c10::Device device) : device_(device), nccl_(load()) {}
  std::string name() const override {
    int version = 0;
    nccl_.must(nccl_.ncclGetVersion(&version), "its version");
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  Id new_id() override {
    Nccl::UniqueId name;
    nccl_.must(nccl_.ncclGetUniqueId(&name), "a name for a lane");
    Id id;
    std::memcpy(id.data(), name.bytes, id.size());
    return id;
  }
  std::unique_ptr<Communicator> join(const Id& id, int end) override {
    return std::make_unique<NcclCommunicator>(nccl_, device_, id, end);
  }

 private:
  const c10::Device device_;
  const Nccl nccl_;
};

}  // namespace

std::unique_ptr<Communicators> nccl_communicators(c10::Device device) {
  return std::make_unique<NcclCommunicators>(device);
}

std::unique_ptr<Communicators> nccl_communicators() {
  if (const std::string why = find_cuda(); !why.empty())
    throw Error(fmt::format("STARLING_TRANSPORT='nccl' needs a GPU for each worker: {}", why));
  return nccl_communicators(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice());
}

}  // namespace starling
