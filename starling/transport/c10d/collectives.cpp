// Collectives over c10d's Gloo.
#include "starling/transport/c10d/collectives.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/transport/c10d/hand_to_gloo.h"
#include "starling/transport/c10d/in_time.h"
#include "starling/transport/c10d/one_line.h"
#include "starling/transport/c10d/socket.h"
#include "starling/transport/c10d/store.h"
#include "starling/transport/c10d/store_values.h"
#include "starling/world/folder_store.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

// While waiting: the interval of checks for another worker's failure.
constexpr milliseconds kPollInterval{500};
constexpr milliseconds kPatience{1'000};  // for a host that does not answer

// Detects the loss of a worker. Gloo tells only the neighbours of the lost worker in the current
// pattern, and does not name it; the others would wait on. Therefore each worker keeps a socket
// that listens as long as its process lives (the operating system answers for it). A worker whose
// operation fails finds the sockets that do not answer, and writes the result to the store. All
// waiting workers check the store twice a second, and turn away those that have checked theirs.
struct State {
  int rank;
  int size;
  int first;  // rank 0 in messages
  milliseconds stalled;
  Interrupted interrupted;
  std::unique_ptr<C10dStore> store;
  Descriptor life_sign;
  std::vector<SocketAddress> life_signs;  // of all workers, by rank
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  std::string failure;  // why nothing works any more

  State(const World& world, const std::string& channel, int first);
  ~State();
  void meet(const World& world, const std::string& channel, Time end);
  void connect(const World& world, const c10::intrusive_ptr<c10d::Store>& at, Time end);

  template <class Start>
  c10::intrusive_ptr<c10d::Work> begin(const char* operation, Start start);
  void finish(const char* operation, c10d::Work& work);

  std::string found_elsewhere();
  std::string find_lost() const;
  [[noreturn]] void fail(const char* operation, const std::string& reason);
  void look_for_interrupt(const char* operation);
  void give_up(const std::string& reason);
};

// If the workers meet in a folder: a file beside the keys.
c10::intrusive_ptr<c10d::Store> store_in(const FolderStore& folder, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, file_store(folder.folder() / "gloo.store"));
}

State::State(const World& world, const std::string& channel, int first)
    : rank(world.rank),
      size(world.size),
      first(first),
      stalled(world.timeouts.stalled),
      interrupted(world.interrupted) {
  auto* const c10d_store = dynamic_cast<C10dStore*>(world.store.get());
  const auto* const folder = dynamic_cast<FolderStore*>(world.store.get());
  if (!c10d_store && !folder)
    throw UsageError("World::store must be a starling::C10dStore or FolderStore for collectives");
  const Time end = Clock::now() + world.timeouts.meet;
  try {
    meet(world, channel, end);
    const std::string prefix = "collectives/" + channel;
    const auto at = c10d_store ? c10d_store->clone(prefix) : store_in(*folder, prefix);
    store = std::make_unique<C10dStore>(at);
    connect(world, at, end);
  } catch (const std::exception& failure) {
    throw Error(fmt::format("rank {} cannot join the collectives of {} workers: {}", first + rank, size,
                            one_line(failure)));
  }
}

// Finds all workers, and names the missing ones before Gloo waits for them.
void State::meet(const World& world, const std::string& channel, Time end) {
  life_sign = listen_at(resolve(world.address, 0));
  const SocketAddress here = bound_address(life_sign);
  const auto key = [&](int of) { return fmt::format("life/{}/{}", channel, of); };
  world.store->set(key(rank), LifeSign{static_cast<std::uint16_t>(here.port()), here.host()}.to_line());
  for (int of = 0; of < size; ++of) {
    const Duration left = std::max(end - Clock::now(), Duration::zero());
    const LifeSign place = LifeSign::from_line(
        world.value_of(first + of, key(of), std::chrono::duration_cast<milliseconds>(left)), first + of);
    life_signs.push_back(resolve(place.host, place.port));
  }
}

// Gloo itself tries for five times its timeout, and does not see that a worker has died. So it has
// more time than is left here.
void State::connect(const World& world, const c10::intrusive_ptr<c10d::Store>& at, Time end) {
  const auto make = [rank = rank, size = size, at, meet = world.timeouts.meet, address = world.address] {
    const WithoutSigpipe errors_only;  // for the threads that Gloo starts
    auto options = c10d::ProcessGroupGloo::Options::create(2 * meet);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(at, rank, size, options);
  };
  const auto look = [&] {
    std::string why = find_lost();
    if (const std::string found = found_elsewhere(); !found.empty()) throw Error(found);
    if (why.empty() && interrupted()) why = fmt::format("worker {} was interrupted", first + rank);
    if (why.empty() && Clock::now() >= end)
      why = fmt::format(
          "the workers have not connected within {:.1f} s (all are alive): has one been "
          "restarted, and do the others go on without it?",
          seconds(world.timeouts.meet));
    if (why.empty()) return;
    give_up(why);
    throw Error(why);
  };
  try {
    gloo = in_time(make, look);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& failure) {
    fail("connecting", one_line(failure));
  }
}

// After a failure operations may still hang in Gloo's threads, and its destructor would wait for
// them.
State::~State() {
  if (!failure.empty()) std::thread([gloo = std::move(gloo)] {}).detach();
}

// The failure that another worker has found; empty if there is none.
std::string State::found_elsewhere() {
  turn_away(life_sign);
  try {
    return store->look("failure").value_or("");
  } catch (const StoreLost&) {
    return find_lost();  // the store is gone, and perhaps the worker that hosted it
  }
}

// "worker 2 is gone", "workers 2, 3 are gone"; empty if all are alive.
std::string State::find_lost() const {
  std::vector<int> lost;
  for (int of = 0; of < size; ++of) {
    if (of != rank && !somebody_listens(life_signs[static_cast<std::size_t>(of)], kPatience))
      lost.push_back(first + of);
  }
  if (lost.empty()) return "";
  const bool one = lost.size() == 1;
  return fmt::format("{} {} {} gone", one ? "worker" : "workers", fmt::join(lost, ", "), one ? "is" : "are");
}

void State::fail(const char* operation, const std::string& reason) {
  // First checks for lost workers, then whether another worker was quicker: that one may have ended
  // since, and is not the cause. A process that is ending may still have its life sign when its
  // other sockets are closed, so the check repeats for a while.
  const Time end = Clock::now() + kPatience;
  std::string lost;
  for (;;) {
    lost = find_lost();
    failure = found_elsewhere();
    if (!lost.empty() || !failure.empty() || Clock::now() >= end) break;
    std::this_thread::sleep_for(milliseconds(20));
  }
  if (failure.empty()) give_up(lost.empty() ? fmt::format("{} (all workers are alive)", reason) : lost);
  throw Error(fmt::format("{} failed on rank {}: {}", operation, first + rank, failure));
}

void State::give_up(const std::string& reason) {
  failure = reason;
  try {
    store->set("failure", failure);
  } catch (const StoreLost&) {
    // Without a store the others find out by themselves: found_elsewhere().
  }
}

// An exception of World::interrupted in backward() reaches its caller after the others know.
void State::look_for_interrupt(const char* operation) {
  std::exception_ptr raised;
  try {
    if (!interrupted()) return;
    raised = std::make_exception_ptr(
        Error(fmt::format("{} failed on rank {}: interrupted", operation, first + rank)));
  } catch (...) {
    raised = std::current_exception();
  }
  give_up(fmt::format("worker {} was interrupted", first + rank));
  std::rethrow_exception(raised);
}

template <class Start>
c10::intrusive_ptr<c10d::Work> State::begin(const char* operation, Start start) {
  if (!failure.empty())
    throw Error(fmt::format("{} failed on rank {}: {}", operation, first + rank, failure));
  try {
    const std::lock_guard lock(flight_recorder());
    return start();
  } catch (const std::exception& failure) {
    fail(operation, one_line(failure));
  }
}

void State::finish(const char* operation, c10d::Work& work) {
  for (;;) {
    try {
      work.wait(kPollInterval);
      return;
    } catch (const std::exception& thrown) {
      if (work.isCompleted()) {
        if (work.isSuccess()) return;  // it has just ended
        fail(operation, one_line(thrown));
      }
    }
    if (const std::string found = found_elsewhere(); !found.empty()) fail(operation, found);
    look_for_interrupt(operation);
  }
}

class GlooCollectives final : public Collectives {
 public:
  GlooCollectives(const World& world, const std::string& channel, int first)
      : state_(std::make_shared<State>(world, channel, first)) {}
  Pending all_reduce_sum(const at::Tensor& tensor) override;
  Pending reduce_sum(const at::Tensor& tensor, int root) override;
  Pending broadcast(const at::Tensor& tensor, int root) override;

 private:
  template <class Options, class Start>
  Pending pending(const char* operation, const at::Tensor& tensor, Options options, Start start);
  std::shared_ptr<State> state_;
};

struct GlooWork final : Collectives::Pending::Work {
  GlooWork(std::shared_ptr<State> state, const char* operation, c10::intrusive_ptr<c10d::Work> work)
      : state(std::move(state)), operation(operation), work(std::move(work)) {}
  void wait() override { state->finish(operation, *work); }
  const std::shared_ptr<State> state;
  const char* const operation;
  const c10::intrusive_ptr<c10d::Work> work;
};

// Calls start() of c10d's group with the tensor, in the common way of its operations.
template <class Options, class Start>
Collectives::Pending GlooCollectives::pending(const char* operation, const at::Tensor& tensor,
                                              Options options, Start start) {
  std::vector<at::Tensor> tensors{tensor};
  options.timeout = state_->stalled;
  auto work = state_->begin(operation, [&] { return start(*state_->gloo, tensors, options); });
  return Pending(std::make_unique<GlooWork>(state_, operation, std::move(work)));
}

Collectives::Pending GlooCollectives::all_reduce_sum(const at::Tensor& tensor) {
  return pending("all-reduce", tensor, c10d::AllreduceOptions(),
                 [](auto& gloo, auto& tensors, auto& options) { return gloo.allreduce(tensors, options); });
}

Collectives::Pending GlooCollectives::reduce_sum(const at::Tensor& tensor, int root) {
  c10d::ReduceOptions options;
  options.rootRank = root;
  return pending("reduce", tensor, options,
                 [](auto& gloo, auto& tensors, auto& options) { return gloo.reduce(tensors, options); });
}

Collectives::Pending GlooCollectives::broadcast(const at::Tensor& tensor, int root) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return pending("broadcast", tensor, options,
                 [](auto& gloo, auto& tensors, auto& options) { return gloo.broadcast(tensors, options); });
}

}  // namespace

std::unique_ptr<Collectives> make_collectives(const World& world, const std::string& channel, int first) {
  if (world.make_collectives) return world.make_collectives(world, channel, first);
  return std::make_unique<GlooCollectives>(world, channel, first);
}

}  // namespace starling
