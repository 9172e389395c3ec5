// The store as the door of a run that goes on. A newcomer knocks, a member looks at the door some
// times a second, on a thread of its own. Nothing else of a run needs the store: while it is lost,
// nobody joins, and the others train on. All that is written there is signed with the token. Many
// runs may have one token: an epoch and a knock name their run, so that they count in no other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "starling/membership/epoch.h"
#include "starling/world/world.h"

namespace starling {

// A newcomer's word, in its seat.
struct Knock {
  std::int64_t life = 0;
  int donor = 0;            // asks this member for its state
  std::uint32_t terms = 0;  // a checksum of its options and parameters: they must be the members'

  bool operator==(const Knock&) const = default;
};

class Door {
 public:
  Door(const World& world, const std::string& channel);

  // Epochs and knocks of other runs are not heard from now on. 0: those of all runs are.
  void follow(std::int64_t run) {
    if (run_ != run) run_ = run;  // a watch may read it
  }

  // All of these throw StoreLost.
  std::optional<Epoch> epoch() const;      // the latest; nothing: the run has not begun
  void publish(const Epoch& epoch) const;  // unless a later one stands there
  // This worker is there to begin the run, and whether that one was.
  void come() const;
  bool has_come(int seat) const;
  void knock(const Knock& mine) const;
  std::optional<Knock> knock_of(int seat) const;
  // A member answers a newcomer at once, whatever its step does: why it is refused, or nothing if
  // its state will come.
  void answer(std::int64_t life, const std::string& refusal) const;
  std::optional<std::string> answer_to(std::int64_t life) const;
  // Whether a later process than this one knocks in its seat, and nobody has refused that.
  bool is_followed(int seat, std::int64_t life) const;
  // The member then shows from time to time that it lives: the newcomer reads another text.
  void beat(std::int64_t life) const;
  std::string beat_of(std::int64_t life) const;  // empty: none yet
  // Changes with each knock and each epoch.
  std::string bell() const;

 private:
  void set(const std::string& key, const std::string& value) const;
  std::optional<std::string> get(const std::string& key) const;  // if it is signed
  void ring() const;

  const std::shared_ptr<Store> store_;
  const std::string prefix_, token_;
  const int seat_, seats_;
  std::int64_t run_ = 0;
};

// A member's watch at the door.
class DoorWatch {
 public:
  // On the watch's thread: `rung` is called at first, after each ring of the bell, and when a lost
  // store is back or empty; `looked` after each look, some times a second. Both may throw
  // StoreLost, and are then called again.
  DoorWatch(const Door& door, std::function<void()> rung, std::function<void()> looked = [] {});
  ~DoorWatch();
  bool is_open() const { return is_open_; }  // the store is there

 private:
  void run();

  const Door door_;
  const std::function<void()> rung_, looked_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::atomic<bool> is_open_ = false;
  std::thread thread_;
};

}  // namespace starling
