#include "starling/exchange/links.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kForAReason{1000};

}  // namespace

std::string name_of_workers(const std::set<int>& ranks) {
  return fmt::format("worker{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

WorkerLinks::WorkerLinks(Transport& transport, Monitor& monitor, LinkOptions options)
    : transport_(transport),
      monitor_(monitor),
      options_(std::move(options)),
      states_(static_cast<std::size_t>(transport.size())) {
  for (const int rank : options_.away) at(rank).left = true;
}

void WorkerLinks::open_all() {
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (rank != transport_.rank() && !is_away(rank)) transport_.open(rank);
  }
}

void WorkerLinks::meet(std::chrono::milliseconds patience) {
  const std::set<int>& neighbours = options_.neighbours;
  const Time begin = transport_.now();
  for (const int rank : neighbours) transport_.open(rank);
  std::unique_lock lock(monitor_.mutex);
  const auto all_met = [&] { return std::ranges::includes(met_, neighbours); };
  // The transport has as much patience, and then says why.
  monitor_.wait(lock, patience + kForAReason, [&] { return all_met() || !never_met_.empty(); });
  if (all_met()) return;
  const auto fail = [&](const std::string& why) {
    lock.unlock();  // a log may ask for counts
    if (options_.needs_all) throw Error(why);
    options_.log(Level::warning, why + ": going on without it");
  };
  if (!never_met_.empty())
    return fail(fmt::format("worker {}: worker {} is gone before all have met ({})", transport_.rank(),
                            never_met_.begin()->first, never_met_.begin()->second));
  std::set<int> missing;
  std::ranges::set_difference(neighbours, met_, std::inserter(missing, missing.end()));
  fail(
      fmt::format("worker {}: no connection to {} after {:.1f} s: is it running, is its port open, and "
                  "has it the same token?",
                  transport_.rank(), name_of_workers(missing), seconds(transport_.now() - begin)));
}

// ---------------------------------------------------------------- what the transport reports

void WorkerLinks::connected(int rank) {
  State& back = at(rank);
  back.owes_vote.reset();
  if (back.met && !back.absent) options_.greet(rank);
  mark_present(rank);
  back.met = true;
  std::unique_lock lock(monitor_.mutex);
  connected_.insert(rank);
  met_.insert(rank);
  never_met_.erase(rank);
  departed_.erase(rank);
  const bool was_gone = gone_.erase(rank) != 0;
  monitor_.changed->notify_all();
  lock.unlock();
  if (was_gone) options_.log(Level::warning, fmt::format("worker {} is back", rank));
}

void WorkerLinks::disconnected(int rank, const std::string& reason) {
  if (!left(rank)) options_.log(Level::info, fmt::format("connection to worker {} broke: {}", rank, reason));
  const std::lock_guard lock(monitor_.mutex);
  connected_.erase(rank);
  monitor_.changed->notify_all();
}

void WorkerLinks::lost(int rank, const std::string& reason) {
  const bool before_meeting = !at(rank).met && is_neighbour(rank);  // then meet() says it
  options_.log(before_meeting ? Level::info : Level::warning,
               fmt::format("worker {} is gone: going on without it ({})", rank, reason));
  if (before_meeting) never_met(rank, reason);
  const std::lock_guard lock(monitor_.mutex);
  gone_.insert(rank);
  monitor_.changed->notify_all();
}

void WorkerLinks::ended(int rank) {
  const std::lock_guard lock(monitor_.mutex);
  departed_.insert(rank);
  unseen_.erase(rank);
  monitor_.changed->notify_all();
}

std::set<int> WorkerLinks::departed() const {
  const auto has_departed = [&](int rank) { return departed_.contains(rank); };
  const bool all = std::ranges::all_of(silent_, has_departed) && std::ranges::all_of(gone_, has_departed);
  return all ? departed_ : std::set<int>();
}

bool WorkerLinks::sees_majority() const {
  std::vector<bool> seen;  // the members, by rank
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (!is_away(rank) && !departed_.contains(rank)) seen.push_back(!unseen_.contains(rank));
  }
  const auto all = seen.size(), there = static_cast<std::size_t>(std::ranges::count(seen, true));
  return 2 * there > all || (2 * there == all && seen.front());
}

void WorkerLinks::never_met(int rank, const std::string& reason) {
  if (at(rank).met || !is_neighbour(rank)) return;
  const std::lock_guard lock(monitor_.mutex);
  never_met_[rank] = reason;
  monitor_.changed->notify_all();
}

// ---------------------------------------------------------------- which take part

bool WorkerLinks::present(int rank, std::uint64_t round) const {
  const auto& averaging = at(rank).averaging;
  return !silent(rank) && !left(rank) && (!averaging || round <= averaging->second);
}

std::set<int> WorkerLinks::members() const {
  std::set<int> ranks;
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (!is_away(rank)) ranks.insert(rank);
  }
  return ranks;
}

std::set<int> WorkerLinks::there() const {
  std::set<int> ranks{transport_.rank()};
  const std::lock_guard lock(monitor_.mutex);
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (!left(rank) && !gone_.contains(rank)) ranks.insert(rank);
  }
  return ranks;
}

void WorkerLinks::mark_absent(int rank, const std::string& why) {
  State& late = at(rank);
  if (late.absent) return;
  late.absent = true;
  if (!late.left) {
    if (const auto more = late.late.say(transport_.now()))
      options_.log(Level::warning,
                   fmt::format("worker {} is late ({}): going on without it{}", rank, why, *more));
  }
  const std::lock_guard lock(monitor_.mutex);
  absent_.insert(rank);
}

void WorkerLinks::mark_present(int rank) {
  State& back = at(rank);
  if (!back.absent) return;
  back.absent = false;
  options_.log(Level::info, fmt::format("worker {} is back in the mix", rank));
  options_.greet(rank);
  const std::lock_guard lock(monitor_.mutex);
  absent_.erase(rank);
}

void WorkerLinks::mark_left(int rank, bool failed) {
  if (failed && !left(rank))
    options_.log(Level::warning,
                 fmt::format("worker {} has left with an error: going on without it, its weight stays with "
                             "its neighbours",
                             rank));
  at(rank).left = true;
  ended(rank);
}

void WorkerLinks::mark_averaging(int rank, std::uint64_t average, std::uint64_t round) {
  at(rank).averaging = {average, round};
}

void WorkerLinks::end_averages(std::uint64_t average) {
  for (State& state : states_) {
    if (state.averaging && state.averaging->first <= average) state.averaging.reset();
  }
}

void WorkerLinks::wait_for_vote(int rank) {
  State& late = at(rank);
  if (!late.owes_vote) {
    late.owes_vote = transport_.now();
  } else if (transport_.now() - *late.owes_vote > options_.silent) {
    transport_.reset(rank, "it does not answer a vote");
  }
}

void WorkerLinks::refuse(int rank, const std::string& claim) {
  const std::string why = fmt::format("it claims {}, which no worker can have reached", claim);
  if (!std::exchange(at(rank).refused, true))
    options_.log(Level::warning, fmt::format("worker {} is refused: {}", rank, why));
  transport_.reset(rank, why);
}

// ---------------------------------------------------------------- time

void WorkerLinks::tick(const std::function<void(int rank, const std::string& why)>& on_silent) {
  const Time now = transport_.now();
  const bool i_slept = slept();  // then it is not the others that were silent
  if (i_slept) woke_ = started_ = now;
  ticked_ = now;
  std::set<int> silent;
  for (int rank = 0; rank < transport_.size(); ++rank) {
    State& other = at(rank);
    if (!other.met) continue;
    say_alive(rank);
    if (i_slept) other.heard = now;
    if (now - other.heard <= options_.silent) continue;
    silent.insert(rank);
    on_silent(rank, fmt::format("silent for {:.1f} s", seconds(now - other.heard)));
  }
  monitor_.locked([&] { silent_ = std::move(silent); });
  note_unseen();
}

void WorkerLinks::note_unseen() {
  std::set<int> unseen;
  for (int rank = 0; rank < transport_.size(); ++rank) {
    const State& other = at(rank);
    const Time since = other.met ? other.heard : started_;
    if (rank != transport_.rank() && !other.left && ticked_ - since > options_.silent) unseen.insert(rank);
  }
  const std::lock_guard lock(monitor_.mutex);
  for (const int rank : departed_) unseen.erase(rank);
  if (unseen == unseen_) return;
  unseen_ = std::move(unseen);
  monitor_.changed->notify_all();
}

void WorkerLinks::say_alive(int rank) {
  const auto now = transport_.now().time_since_epoch().count();
  transport_.send(
      rank,
      {.type = FrameType::heartbeat, .step = pauses_ ? 1U : 0U, .value = static_cast<std::uint64_t>(now)});
}

void WorkerLinks::pause(bool pauses) {
  pauses_ = pauses;
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (at(rank).met) say_alive(rank);
  }
}

void WorkerLinks::control(int rank, FrameType type, std::uint64_t value) {
  transport_.send(rank, {.type = type, .value = value});
}

void WorkerLinks::leave(bool failed) {
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (at(rank).met) control(rank, FrameType::leave, failed ? 1 : 0);
  }
}

}  // namespace starling
