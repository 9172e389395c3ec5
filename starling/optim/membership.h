// The members of a run change while it goes on: an Optimizer's part in it. World::rejoin turns it
// on. There is no special worker.
//
//   a newcomer, which has come to a seat        the members
//
//   knocks at the door: asks one for its   -->  this donor copies its state between two steps, and
//   state (membership/door.h)                   sends it beside its training
//   has read it                            -->  the donor calls a renewal: each comes to it before
//                                               its next step, and out of an average that waits for
//                                               one that has come already
//                                               they agree on who is there, with the newcomers that
//                                               are still there: the members of the next epoch
//                                               mix what is in flight between them
//   connects with all of them             <-->  connect anew, by a schedule for so many workers
//   takes the place of one of them in the <--   say how many steps and operations they have made
//   run: its next step is that one's
//
// Nothing of the old epoch crosses into the new one. All schemes begin anew from the parameters, as
// after Optimizer::begin_again(). A member that was away, and finds that the others have an epoch
// without it, is a newcomer too. Members that have ended leave by the next renewal. If none comes
// within timeouts.silent, one of the others calls it. Until then their neighbours go on without
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "starling/core/clock.h"
#include "starling/core/random.h"
#include "starling/core/with_lock.h"
#include "starling/membership/door.h"
#include "starling/membership/epoch.h"
#include "starling/membership/transfer.h"
#include "starling/world/world.h"

namespace starling {

// A member's place in the run.
struct Place {
  std::uint64_t steps = 0;       // calls of step()
  std::uint64_t made = 0;        // Engine::made
  std::uint64_t operations = 0;  // Exchange::operations()
};

// The channel of this process's k-th optimizer.
std::string optimizer_channel(int k);

// Whether the run of the world's first optimizer goes on without this worker: its Optimizer will
// join it. Otherwise it waits until all that begin the run have come or, if it does not begin it
// (World::initial_size), until it has begun. Throws Error after timeouts.meet. Throws StoreLost.
bool goes_on(const World& world);

class Membership {
 public:
  // `terms`: a checksum of what must be equal on all workers.
  Membership(const World& world, const std::string& channel, std::uint32_t terms);

  // The run's present epoch, if it goes on without this worker. Waits as the function above.
  std::optional<Epoch> goes_on() const;

  // --- a newcomer ---
  // Gets the state of a member. Blocks until it has come. Throws Error if it does not within
  // timeouts.meet, or if the store is lost for so long; UsageError if this worker is refused, if
  // another process has its seat, or if no member is left.
  MemoryFile& take_state();
  int donor() const { return donor_; }
  // Call it when the state is read: the members then wait for this worker. Waits to be a member of
  // an epoch, which it returns. Nothing: the donor is gone, or the members went on without it.
  std::optional<Epoch> enter();

  // --- a member ---
  std::int64_t life() const { return life_; }
  // Publishes it. Watches the door from now on.
  void set_epoch(const Epoch& epoch);
  // Whether anything waits at the door. Cheap: step() asks.
  bool has_news() const { return news_; }
  // Whether the others have an epoch without this worker.
  bool is_out() const {
    return with_lock(mutex_, [this] { return out_; });
  }
  // Members in whose seats newcomers knock that nobody has refused: their processes have ended.
  std::set<int> started_again() const {
    return with_lock(mutex_, [this] { return started_again_; });
  }
  // The newcomers that want this worker's state, each once: seat -> life. One is refused if another
  // process of its seat takes part for timeouts.silent.
  std::map<int, std::int64_t> wanted(const std::function<bool(int seat)>& takes_part);
  // This worker cannot give them its state: they hear no more from it, and ask another one.
  void decline(const std::map<int, std::int64_t>& newcomers);
  // `hash`: the state's CRC32C.
  void donate(int seat, std::int64_t life, std::shared_ptr<MemoryFile> state, std::uint32_t hash);
  // The newcomers that have this worker's state and are still there: seat -> life. None while the
  // store is lost.
  std::map<int, std::int64_t> ready();
  // Call it before each step, with the members whose processes have ended. If they stay away for
  // timeouts.silent, they are news, and in leave_out(): the next epoch shall begin without them.
  void note_departed(const std::set<int>& departed);
  std::set<int> leave_out() const {
    return with_lock(mutex_, [this] { return leave_out_; });
  }
  // The world in which the workers of this later epoch meet: they have little patience.
  World hasty_world(const Epoch& epoch) const;

 private:
  void look();  // these four on the watch's thread
  void beat();
  void judge_departed();
  void note_started_again(const Epoch& present);  // throws StoreLost
  void ask_for_state(int turn, Time end);
  std::vector<int> living_members();
  bool has_members() const;  // as far as this newcomer knows. Throws StoreLost
  std::string channel_of(int donor, int seat, std::int64_t life) const;

  const World world_;
  const std::string channel_;
  const std::uint32_t terms_;
  Door door_;
  std::int64_t life_ = new_id();
  std::set<std::int64_t> lives_{life_};  // so far
  int donor_ = 0;
  Epoch epoch_;  // written with the lock, by the training thread
  std::unique_ptr<Receipt> receipt_;
  std::map<std::int64_t, std::unique_ptr<Donation>> donations_;  // by life
  struct Newcomer {
    std::int64_t life;
    Time since;
  };
  // Lives of newcomers, on the watch's thread: those that had an answer; those for which it has
  // waited once.
  std::set<std::int64_t> seen_, waited_for_;
  std::map<int, Newcomer> coming_;      // by seat: those that wait for this worker's state; likewise
  std::map<int, std::int64_t> knocks_;  // by seat: the life of the last newcomer; likewise
  Time beaten_{};                       // likewise

  mutable std::mutex mutex_;  // of the following
  std::atomic<bool> news_ = false;
  bool out_ = false;
  std::map<int, Newcomer> wanted_;   // by seat
  std::set<std::int64_t> declined_;  // lives
  std::set<int> departed_, leave_out_, started_again_;
  Time departed_since_{};

  std::unique_ptr<DoorWatch> watch_;  // last: its thread ends before anything else goes
};

}  // namespace starling
