#include "starling/transport/c10d/virtual_collectives.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {
namespace {

using Takes = std::function<Duration(int workers, std::size_t bytes)>;

// One operation of all workers.
struct Operation {
  std::vector<at::Tensor> tensors;  // by rank
  int come = 0;
  bool done = false;
};

// The meeting place of a channel's workers.
struct Room {
  explicit Room(VirtualTime& time) : changed(time.condition()) {}
  std::mutex mutex;  // guards the members below
  const std::unique_ptr<Condition> changed;
  std::map<std::uint64_t, std::shared_ptr<Operation>> open;  // by number
  Time free{};                                               // end of the last one
};

class VirtualCollectives final : public Collectives {
 public:
  VirtualCollectives(const World& world, std::shared_ptr<VirtualTime> time, std::shared_ptr<Room> room,
                     Takes takes, int first)
      : rank_(world.rank),
        size_(world.size),
        first_(first),
        stalled_(world.timeouts.stalled),
        time_(std::move(time)),
        room_(std::move(room)),
        takes_(std::move(takes)) {}

  Pending all_reduce_sum(const at::Tensor& tensor) override {
    return start("all-reduce", tensor, [](Operation& all) {
      add_to(all, 0);
      copy_from(all, 0);
    });
  }
  Pending reduce_sum(const at::Tensor& tensor, int root) override {
    return start("reduce", tensor, [root](Operation& all) { add_to(all, root); });
  }
  Pending broadcast(const at::Tensor& tensor, int root) override {
    return start("broadcast", tensor, [root](Operation& all) { copy_from(all, root); });
  }
  Time now() const override { return time_->now(); }

 private:
  using Combine = std::function<void(Operation&)>;
  struct Work final : Pending::Work {
    Work(VirtualCollectives& of, const char* name, std::shared_ptr<Operation> operation)
        : of(of), name(name), operation(std::move(operation)) {}
    void wait() override { of.wait(name, *operation); }
    VirtualCollectives& of;
    const char* const name;
    const std::shared_ptr<Operation> operation;
  };

  static void copy_from(Operation& all, int root) {
    const at::NoGradGuard no_grad;
    const at::Tensor& from = all.tensors[static_cast<std::size_t>(root)];
    for (const at::Tensor& to : all.tensors) {
      if (!to.is_same(from)) to.copy_(from);
    }
  }
  static void add_to(Operation& all, int root) {
    const at::NoGradGuard no_grad;
    const at::Tensor& sum = all.tensors[static_cast<std::size_t>(root)];
    for (const at::Tensor& one : all.tensors) {
      if (!one.is_same(sum)) sum.add_(one);
    }
  }

  Pending start(const char* name, const at::Tensor& tensor, Combine combine) {
    return Pending(std::make_unique<Work>(*this, name,
                                          come(tensor, takes_(size_, tensor.nbytes()), std::move(combine))));
  }

  // The last worker combines the values of all.
  std::shared_ptr<Operation> come(const at::Tensor& tensor, Duration takes, const Combine& combine) {
    const std::lock_guard lock(room_->mutex);
    const std::uint64_t number = number_++;
    auto& slot = room_->open[number];
    if (!slot) slot = std::make_shared<Operation>();
    const auto all = slot;
    all->tensors.resize(static_cast<std::size_t>(size_));
    all->tensors[static_cast<std::size_t>(rank_)] = tensor;
    if (++all->come < size_) return all;
    room_->open.erase(number);
    combine(*all);
    all->tensors.clear();
    room_->free = std::max(room_->free, time_->now()) + takes;
    time_->at(room_->free, [room = room_, all] {
      const std::lock_guard lock(room->mutex);
      all->done = true;
      room->changed->notify_all();
    });
    return all;
  }

  void wait(const char* name, const Operation& operation) {
    std::unique_lock lock(room_->mutex);
    if (!room_->changed->wait_until(lock, time_->now() + stalled_, [&] { return operation.done; }))
      throw Error(fmt::format("{} failed on rank {}: {} of {} workers have come in {:.1f} s", name,
                              first_ + rank_, operation.come, size_, seconds(stalled_)));
  }

  const int rank_, size_, first_;
  const std::chrono::milliseconds stalled_;
  const std::shared_ptr<VirtualTime> time_;
  const std::shared_ptr<Room> room_;
  const Takes takes_;
  std::uint64_t number_ = 0;
};

}  // namespace

std::function<std::unique_ptr<Collectives>(const World&, const std::string& channel, int first)>
virtual_collectives(std::shared_ptr<VirtualTime> time, Takes takes) {
  struct Rooms {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<Room>> by_channel;
  };
  return [rooms = std::make_shared<Rooms>(), time = std::move(time), takes = std::move(takes)](
             const World& world, const std::string& channel, int first) {
    const std::lock_guard lock(rooms->mutex);
    auto& room = rooms->by_channel[channel];
    if (!room) room = std::make_shared<Room>(*time);
    return std::make_unique<VirtualCollectives>(world, time, room, takes, first);
  };
}

}  // namespace starling
