#include "starling/optim/membership.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kLookAtEpoch{10};
constexpr std::chrono::milliseconds kLookAtDoor{200};
constexpr const char* kNobody = "no member of it is left; a new run can begin from its last checkpoint";
constexpr std::size_t kMostState = std::size_t{1} << 40;  // bytes

}  // namespace

std::string optimizer_channel(int k) { return fmt::format("optimizer-{}", k); }

bool goes_on(const World& world) {
  return world.rejoin && world.size > 1 && Door(world, optimizer_channel(0)).epoch().has_value();
}

Membership::Membership(const World& world, const std::string& channel, std::uint32_t terms)
    : world_(world), channel_(channel), terms_(terms), door_(world, channel) {}

std::optional<Epoch> Membership::goes_on() const {
  const auto epoch = door_.epoch();
  return epoch && !epoch->has(world_.rank, life_) ? epoch : std::nullopt;
}

std::string Membership::channel_of(int donor, int seat, std::int64_t life) const {
  return fmt::format("{}.state-{}-{}-{}", channel_, donor, seat, life);
}

// ---------------------------------------------------------------- a newcomer

MemoryFile& Membership::take_state() {
  watch_.reset();
  receipt_.reset();
  const Time end = Clock::now() + world_.timeouts.meet;
  life_ = new_id();
  std::string why = "nobody is there";
  for (int turn = 1; Clock::now() < end; ++turn) {
    const auto epoch = door_.epoch();
    std::vector<int> members = epoch ? epoch->members() : std::vector<int>();
    std::erase(members, world_.rank);
    // The next seats first, so that the newcomers of several seats ask several donors.
    std::ranges::rotate(members, std::ranges::upper_bound(members, world_.rank));
    std::erase_if(members, [&](int seat) { return !world_.fate(seat).empty(); });
    if (members.empty()) throw UsageError("this worker cannot join the run: no member of it is left");
    donor_ = members[static_cast<std::size_t>(turn - 1) % members.size()];
    door_.knock({.life = life_, .donor = donor_, .terms = terms_});
    std::string hopeless;
    World waiting = world_;
    waiting.interrupted = [&, looked = Clock::now(), asked = Clock::now()]() mutable {
      if (Clock::now() - looked < kLookAtDoor) return world_.interrupted();
      looked = Clock::now();
      bool is_heard = true;
      try {
        const auto answer = door_.answer_to(life_);
        is_heard = answer || Clock::now() - asked <= world_.timeouts.silent / 5;
        hopeless = answer && !answer->empty() ? *answer : has_members() ? "" : kNobody;
      } catch (const StoreLost& lost) {
        hopeless = lost.what();
      }
      return !hopeless.empty() || !is_heard || world_.interrupted();
    };
    try {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      receipt_ = std::make_unique<Receipt>(waiting, channel_of(donor_, world_.rank, life_), donor_,
                                           kMostState, left);
      return receipt_->state();
    } catch (const StoreLost&) {
      throw;
    } catch (const Error& failure) {
      why = failure.what();
    }
    if (!hopeless.empty()) throw UsageError(fmt::format("this worker cannot join the run: {}", hopeless));
    if (world_.interrupted()) break;
    world_.log(Level::info, fmt::format("{}: asking another worker", why));
    life_ = new_id();
  }
  throw Error(fmt::format("this worker cannot join the run: {}", why));
}

bool Membership::has_members() const {
  const auto epoch = door_.epoch();
  return epoch && std::ranges::any_of(epoch->lives, [&](const auto& member) {
           const auto& [seat, life] = member;
           if (seat == world_.rank || !world_.fate(seat).empty()) return false;
           const auto knock = door_.knock_of(seat);  // of a later process in this seat?
           return !knock || knock->life == life;
         });
}

std::optional<Epoch> Membership::enter() {
  const Time end = Clock::now() + world_.timeouts.meet;
  while (Clock::now() < end && !world_.interrupted()) {
    const bool has_donor = receipt_->is_connected();  // it publishes the epoch before it closes
    const auto epoch = door_.epoch();
    if (epoch && epoch->has(world_.rank, life_)) return epoch;
    if (!has_donor) break;
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
  }
  try {
    door_.publish(epoch);
  } catch (const StoreLost& lost) {
    world_.log(Level::warning, fmt::format("{}: nobody can join until it is back", lost.what()));
  }
  receipt_.reset();
  std::erase_if(donations_, [&](const auto& donation) {
    return donation.second->is_over() || epoch.has(donation.second->to(), donation.first);
  });
  if (!watch_) watch_ = std::make_unique<DoorWatch>(door_, [this] { look(); });
}

void Membership::look() {
  const auto latest = door_.epoch();
  for (int seat = 0; seat < world_.size; ++seat) {
    const auto knock = seat == world_.rank ? std::nullopt : door_.knock_of(seat);
    if (!knock || knock->donor != world_.rank) continue;
    if (seen_.contains(knock->life)) continue;
    const bool fits = knock->terms == terms_;
    door_.answer(knock->life, fits ? "" : "its options or its parameters differ from the members'");
    seen_.insert(knock->life);
    if (!fits) continue;
    const std::lock_guard lock(mutex_);
    wanted_[seat] = knock->life;
    news_ = true;
  }
  const std::lock_guard lock(mutex_);
  if (latest && latest->number > epoch_.number && !latest->has(world_.rank, life_)) out_ = news_ = true;
}

bool Membership::is_out() const {
  const std::lock_guard lock(mutex_);
  return out_;
}

std::map<int, std::int64_t> Membership::wanted() {
  const std::lock_guard lock(mutex_);
  news_ = false;
  return std::exchange(wanted_, {});
}

std::map<int, std::int64_t> Membership::ready() {
  std::map<int, std::int64_t> ready;
  std::erase_if(donations_, [](const auto& donation) { return donation.second->is_over(); });
  for (const auto& [life, donation] : donations_) {
    if (donation->is_taken()) ready[donation->to()] = life;
  }
  return ready;
}

void Membership::donate(int seat, std::int64_t life, std::unique_ptr<MemoryFile> state, std::uint32_t hash) {
  donations_[life] = std::make_unique<Donation>(world_, channel_of(world_.rank, seat, life), seat,
                                                std::move(state), hash, [this] { news_ = true; });
  world_.log(Level::info, fmt::format("worker {} comes: it gets this worker's state", seat));
}

World Membership::hasty_world(const Epoch& epoch) const {
  World world = world_;
  world.timeouts.meet = world.timeouts.meet_again();
  world.fate = [fate = world_.fate, door = door_, lives = epoch.lives](int seat) -> std::string {
    if (std::string end = fate(seat); !end.empty()) return end;
    const auto member = lives.find(seat);
    try {
      const auto knock = door.knock_of(seat);
      return knock && member != lives.end() && knock->life != member->second ? "was started again" : "";
    } catch (const StoreLost&) {
      return "";
    }
  };
  return world;
}

}  // namespace starling
