#include "starling/optim/membership.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/world/ask_again.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kLookAtEpoch{10};
constexpr std::chrono::milliseconds kLookAtDoor{200};
constexpr const char* kNobody = "no member of it is left; a new run can begin from its last checkpoint";
constexpr std::size_t kMostState = std::size_t{1} << 40;  // bytes

// The run's present epoch; nothing: this worker is one of those that begin the run, and all of them
// have come, or one never will. A store without an epoch may be a new one of a run that goes on, as
// if this very worker hosts it and was started again. Then the members publish their epoch there.
std::optional<Epoch> epoch_of_run(const World& world, const Door& door) {
  const Time end = Clock::now() + world.timeouts.meet;
  const int first = world.initial_size.value_or(world.size);
  const bool begins = world.rank < first;
  if (begins) door.come();
  int awaited = 0;
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, kLookAtDoor)) {
    if (const auto epoch = door.epoch()) return epoch;
    while (begins && awaited < first && door.has_come(awaited)) ++awaited;
    if (begins && (awaited == first || !world.fate(awaited).empty())) return std::nullopt;
    if (Clock::now() >= end || world.interrupted())
      throw Error(
          begins ? fmt::format("worker {} has not come to begin the run", awaited)
                 : fmt::format("worker {} joins a run that the first {} workers begin, and it has not begun",
                               world.rank, first));
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

std::string optimizer_channel(int k) { return fmt::format("optimizer-{}", k); }

bool goes_on(const World& world) {
  return world.rejoin && world.size > 1 && epoch_of_run(world, Door(world, optimizer_channel(0))).has_value();
}

Membership::Membership(const World& world, const std::string& channel, std::uint32_t terms)
    : world_(world), channel_(channel), terms_(terms), door_(world, channel) {}

std::optional<Epoch> Membership::goes_on() const {
  const auto epoch = epoch_of_run(world_, door_);
  return epoch && !epoch->has(world_.rank, life_) ? epoch : std::nullopt;
}

std::string Membership::channel_of(int donor, int seat, std::int64_t life) const {
  return fmt::format("{}.state-{}-{}-{}", channel_, donor, seat, life);
}

// ---------------------------------------------------------------- a newcomer

MemoryFile& Membership::take_state() {
  watch_.reset();
  receipt_.reset();
  donations_.clear();
  wanted_.clear();
  const Time end = Clock::now() + world_.timeouts.meet;
  std::string why = "nobody is there";
  for (int turn = 0; Clock::now() < end && !world_.interrupted(); ++turn) {
    lives_.insert(life_ = new_id());
    door_.follow(epoch_.run);
    try {
      ask_for_state(turn, end);
      return receipt_->state();
    } catch (const UsageError&) {
      throw;
    } catch (const StoreLost& lost) {
      why = lost.what();
    } catch (const Error& failure) {
      why = failure.what();
      world_.log(Level::warning, fmt::format("{}: asking another worker", why));
    }
    std::this_thread::sleep_for(std::min((turn + 1) * kLookAtDoor, kAskStoreAgain));
  }
  throw Error(fmt::format("this worker cannot join the run: {}", why));
}

void Membership::ask_for_state(int turn, Time end) {
  const std::vector<int> members = living_members();
  donor_ = members[static_cast<std::size_t>(turn) % members.size()];
  door_.knock({.life = life_, .donor = donor_, .terms = terms_});
  receipt_.reset();
  const auto fate = hasty_world(door_.epoch().value_or(Epoch())).fate;
  const Duration silent = world_.timeouts.silent;
  std::string hopeless, mute;  // why no state comes: from anybody, from this donor
  World waiting = world_;
  waiting.interrupted = [&, looked = Clock::now(), asked = Clock::now(), heard = Clock::now(),
                         beat = std::string()]() mutable {
    const auto is_over = [&] { return !hopeless.empty() || !mute.empty() || world_.interrupted(); };
    const Time now = Clock::now();
    if (now - looked < kLookAtDoor) return is_over();
    looked = now;
    try {
      const auto answer = door_.answer_to(life_);
      hopeless = answer && !answer->empty() ? *answer : has_members() ? "" : kNobody;
      const std::string latest = door_.beat_of(life_);
      const bool is_connected = receipt_ && receipt_->is_connected();
      if (latest != beat || is_connected) heard = now;
      beat = latest;
      const std::string ended = is_connected ? "" : fate(donor_);
      if (!ended.empty())
        mute = fmt::format("worker {} {}", donor_, ended);
      else if (!answer ? now - asked > silent / 5 : now - heard > silent)
        mute = fmt::format("worker {} does not answer", donor_);
    } catch (const StoreLost&) {  // the state comes without it
      heard = now;
    }
    return is_over();
  };
  const Duration left = end - Clock::now();
  // A donor that lives, and does not come to its next step, leaves time for another.
  const Duration patience = members.size() == 1 ? left : std::max<Duration>(left / 2, silent);
  try {
    receipt_ = std::make_unique<Receipt>(waiting, channel_of(donor_, world_.rank, life_), donor_, kMostState);
    receipt_->wait(std::chrono::ceil<std::chrono::milliseconds>(std::min(patience, left)));
  } catch (const Error&) {
    if (!hopeless.empty()) throw UsageError(fmt::format("this worker cannot join the run: {}", hopeless));
    if (!mute.empty()) throw Error(mute);
    throw;
  }
}

// The next seats first, so that the newcomers of several seats ask several donors.
std::vector<int> Membership::living_members() {
  const auto epoch = door_.epoch();
  if (!epoch) throw StoreLost("the store has no epoch of the run: it was started again");
  door_.follow(epoch->run);
  std::vector<int> members = epoch->members();
  const auto mine = epoch->lives.find(world_.rank);
  const bool was_member = epoch_.lives.contains(world_.rank);
  if (was_member && mine != epoch->lives.end() && !lives_.contains(mine->second))
    throw UsageError("this worker cannot join the run: another process has taken its rank meanwhile");
  std::erase(members, world_.rank);
  std::ranges::rotate(members, std::ranges::upper_bound(members, world_.rank));
  std::erase_if(members, [&](int seat) { return !world_.fate(seat).empty(); });
  if (members.empty()) throw UsageError(fmt::format("this worker cannot join the run: {}", kNobody));
  return members;
}

bool Membership::has_members() const {
  const auto epoch = door_.epoch();
  return !epoch || std::ranges::any_of(epoch->lives, [&](const auto& member) {
    const auto& [seat, life] = member;
    return seat != world_.rank && world_.fate(seat).empty() && !door_.is_followed(seat, life);
  });
}

std::optional<Epoch> Membership::enter() {
  receipt_->accept();
  const Time end = Clock::now() + world_.timeouts.meet;
  while (Clock::now() < end && !world_.interrupted()) {
    const bool has_donor = receipt_->is_connected();  // it publishes the epoch before it closes
    try {
      const auto epoch = door_.epoch();
      if (epoch && epoch->has(world_.rank, life_)) return epoch;
      if (!has_donor) break;
    } catch (const StoreLost&) {
    }
    std::this_thread::sleep_for(kLookAtEpoch);
  }
  return std::nullopt;
}

// ---------------------------------------------------------------- a member

void Membership::set_epoch(const Epoch& epoch) {
  {
    const std::lock_guard lock(mutex_);
    epoch_ = epoch;
    out_ = false;
    departed_.clear();
    leave_out_.clear();
    started_again_.clear();
  }
  door_.follow(epoch.run);
  try {
    door_.publish(epoch);
  } catch (const StoreLost& lost) {
    world_.log(Level::warning, fmt::format("{}: nobody can join until it is back", lost.what()));
  }
  receipt_.reset();
  std::erase_if(donations_, [&](const auto& donation) {
    return donation.second->is_over() || epoch.lives.contains(donation.second->to());
  });
  const auto looked = [this] {
    beat();
    judge_departed();
  };
  if (!watch_) watch_ = std::make_unique<DoorWatch>(door_, [this] { look(); }, looked);
}

void Membership::look() {
  const auto latest = door_.epoch();
  const Epoch mine = with_lock(mutex_, [this] { return epoch_; });
  if (!latest || latest->number < mine.number) door_.publish(mine);  // the store was lost meanwhile
  for (int seat = 0; seat < world_.size; ++seat) {
    const auto knock = seat == world_.rank ? std::nullopt : door_.knock_of(seat);
    if (knock) knocks_[seat] = knock->life;
    if (!knock || knock->donor != world_.rank) continue;
    if (seen_.contains(knock->life)) continue;
    // An earlier process of this rank has answered: that newcomer has come, or asks another one.
    const bool is_old = door_.answer_to(knock->life).has_value(), fits = knock->terms == terms_;
    if (!is_old)
      door_.answer(knock->life, fits ? "" : "its options or its parameters differ from the members'");
    seen_.insert(knock->life);
    if (is_old || !fits) continue;
    coming_[seat] = {knock->life, Clock::now()};
    const std::lock_guard lock(mutex_);
    wanted_[seat] = coming_[seat];
  }
  note_started_again(mine);
  const std::lock_guard lock(mutex_);
  // Two parts of a run that did not see each other may have made two epochs of one number.
  if (latest && latest->number >= epoch_.number && !latest->has(world_.rank, life_)) out_ = true;
  news_ = true;
}

// A newcomer cannot know otherwise whether this worker makes a long step, or has stopped.
void Membership::beat() {
  const Time now = Clock::now();
  if (now - beaten_ < world_.timeouts.silent / 5) return;
  beaten_ = now;
  const Epoch present = with_lock(mutex_, [this] { return epoch_; });
  const std::set<std::int64_t> declined = with_lock(mutex_, [this] { return declined_; });
  std::erase_if(coming_, [&](const auto& entry) {
    const auto& [seat, newcomer] = entry;
    if (present.has(seat, newcomer.life) || declined.contains(newcomer.life)) return true;
    if (now - newcomer.since > world_.timeouts.meet) return true;
    const auto knock = door_.knock_of(seat);
    return !knock || knock->life != newcomer.life;
  });
  for (const auto& [seat, newcomer] : coming_) door_.beat(newcomer.life);
  note_started_again(present);
}

// A second process of a worker that takes part is refused.
void Membership::note_started_again(const Epoch& present) {
  std::set<int> again;
  for (const auto& [seat, life] : knocks_) {
    const auto member = present.lives.find(seat);
    if (member == present.lives.end() || member->second == life) continue;
    if (door_.answer_to(life).value_or("").empty()) again.insert(seat);
  }
  const std::lock_guard lock(mutex_);
  if (epoch_ == present) started_again_ = std::move(again);
}

std::map<int, std::int64_t> Membership::wanted(const std::function<bool(int seat)>& takes_part) {
  std::map<int, std::int64_t> wanted;
  std::vector<std::int64_t> refused;
  std::unique_lock lock(mutex_);
  news_ = false;
  for (const auto& [seat, newcomer] : std::exchange(wanted_, {})) {
    if (!takes_part(seat)) {
      wanted[seat] = newcomer.life;
    } else if (Clock::now() - newcomer.since > world_.timeouts.silent) {
      refused.push_back(newcomer.life);
    } else {  // the end of the seat's last process may not have been seen yet
      wanted_[seat] = newcomer;
      news_ = true;
    }
  }
  lock.unlock();
  for (const std::int64_t life : refused) {
    try {
      door_.answer(life, "another process has this rank, and takes part");
    } catch (const StoreLost&) {  // it asks again
    }
  }
  return wanted;
}

std::map<int, std::int64_t> Membership::ready() {
  std::map<int, std::int64_t> ready;
  if (!watch_->is_open()) return ready;  // nobody could meet
  std::erase_if(donations_, [](const auto& donation) { return donation.second->is_over(); });
  for (const auto& [life, donation] : donations_) {
    if (donation->is_taken()) ready[donation->to()] = life;
  }
  return ready;
}

void Membership::donate(int seat, std::int64_t life, std::shared_ptr<MemoryFile> state, std::uint32_t hash) {
  donations_[life] = std::make_unique<Donation>(world_, channel_of(world_.rank, seat, life), seat,
                                                std::move(state), hash, [this] { news_ = true; });
  world_.log(Level::info, fmt::format("worker {} comes: it gets this worker's state", seat));
}

void Membership::decline(const std::map<int, std::int64_t>& newcomers) {
  const std::lock_guard lock(mutex_);
  for (const auto& [seat, life] : newcomers) declined_.insert(life);
}

void Membership::note_departed(const std::set<int>& departed) {
  const std::lock_guard lock(mutex_);
  if (departed == departed_ && (departed.empty() || watch_->is_open())) return;
  departed_ = departed;
  departed_since_ = Clock::now();
  leave_out_.clear();
}

// The run may have gone on elsewhere, or somebody may be coming: then they are left in for another
// while.
void Membership::judge_departed() {
  std::unique_lock lock(mutex_);
  const Epoch epoch = epoch_;
  const std::set<int> departed = departed_;
  const bool is_due = Clock::now() - departed_since_ >= world_.timeouts.silent;
  if (departed.empty() || !leave_out_.empty() || !is_due) return;
  if (departed.size() + 1 >= epoch.lives.size()) return;  // alone it needs no other schedule
  departed_since_ = Clock::now();
  lock.unlock();
  if (door_.epoch() != epoch) return;
  for (const int seat : departed) {
    const auto knock = door_.knock_of(seat);
    if (knock && knock->life != epoch.lives.at(seat) && waited_for_.insert(knock->life).second) return;
  }
  lock.lock();
  if (departed_ != departed || epoch_ != epoch) return;
  leave_out_ = departed;
  news_ = true;
}

World Membership::hasty_world(const Epoch& epoch) const {
  World world = world_;
  world.timeouts.meet = world.timeouts.meet_again();
  world.fate = [fate = world_.fate, door = door_, lives = epoch.lives](int seat) -> std::string {
    if (std::string end = fate(seat); !end.empty()) return end;
    const auto member = lives.find(seat);
    try {
      const bool is_followed = member != lives.end() && door.is_followed(seat, member->second);
      return is_followed ? "was started again" : "";
    } catch (const StoreLost&) {
      return "";
    }
  };
  return world;
}

}  // namespace starling
