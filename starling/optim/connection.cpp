// The connections of an optimizer: the first ones, those for a new parameter group, and those of
// each later epoch (membership.h).
#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/clock.h"
#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/core/seldom.h"
#include "starling/optim/agreement.h"
#include "starling/optim/engine.h"
#include "starling/optim/finite.h"
#include "starling/optim/gathering.h"
#include "starling/optim/membership.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"
#include "starling/optim/sent_size.h"
#include "starling/optim/state_file.h"
#include "starling/optim/torch_state.h"
#include "starling/transport/c10d/one_line.h"
#include "starling/world/ask_again.h"

namespace starling {
namespace {

constexpr int kMostTurns = 5;           // of a worker that asks to join
constexpr int kMostSpoiled = 3;         // times that it takes another one's state, each soon after the last
constexpr std::uint64_t kSound = 1000;  // steps after which the next time is the first again

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

Terms terms_of(const Options& options, const Schedule& schedule, const std::string& rule, std::size_t blocks,
               const Groups& groups, const std::vector<at::Tensor>& buffers,
               const std::vector<at::Tensor>& frozen) {
  Terms terms = terms_of(options);
  terms.emplace_back("rule", rule);
  terms.emplace_back("rounds of the topology",
                     fmt::format("{} with checksum {:016x}", schedule.rounds.size(), schedule.fingerprint()));
  terms.emplace_back("number of blocks", std::to_string(blocks));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t p = 0; p < groups[g].params().size(); ++p) {
      const at::Tensor& tensor = groups[g].params()[p];
      terms.emplace_back(fmt::format("parameter {} of group {}", p, g),
                         fmt::format("{} {} with strides {}{}", c10::toString(tensor.scalar_type()),
                                     fmt::join(tensor.sizes(), "x"), fmt::join(tensor.strides(), ","),
                                     takes_whole(groups[g], tensor) ? ", updated as a matrix" : ""));
    }
  }
  add_tensors(terms, "buffer", buffers);
  add_tensors(terms, "frozen parameter", frozen);
  return terms;
}

// The schedule of the options for so many workers. If their topology is not possible for that
// number: the first of these that is.
Schedule schedule_for(Options options, int workers, int local_workers, const Log& log) {
  const std::string wanted = options.topology;
  for (const std::string& topology : std::array<std::string, 4>{wanted, "base-2", "ring", "complete"}) {
    options.topology = topology;
    try {
      check_options(options, workers, local_workers, /*around=*/false);
      if (topology != wanted)
        log(Level::warning, fmt::format("topology {} is not possible for {} workers: going on with {}",
                                        wanted, workers, topology));
      return schedule_of(options, workers, local_workers);
    } catch (const UsageError&) {
    }
  }
  throw Error(fmt::format("no topology is possible for {} workers", workers));
}

// The members have begun an epoch without this worker, or it cannot meet them.
struct LeftOut final : Error {
  explicit LeftOut(const std::string& why = "the other workers have gone on without this one, which was away")
      : Error(why) {}
};

// The members of a new epoch tell each other their places. Collective, the first operation of the
// new exchange. Returns the places of those that gave one, by rank. `rounds`, those of the run so
// far, becomes the largest of any.
std::map<int, Place> tell_places(Exchange& exchange, int rank, int size, const std::optional<Place>& mine,
                                 std::uint64_t& rounds) {
  constexpr std::size_t kNumbers = 3;
  std::vector<std::int64_t> all(kNumbers * static_cast<std::size_t>(size) + 1);
  all.back() = static_cast<std::int64_t>(rounds);
  const auto of = [&](int r) {
    return std::span(all).subspan(kNumbers * static_cast<std::size_t>(r), kNumbers);
  };
  if (mine) {
    // 0: this worker gave none
    of(rank)[0] = static_cast<std::int64_t>(mine->steps) + 1;
    of(rank)[1] = static_cast<std::int64_t>(mine->made);
    of(rank)[2] = static_cast<std::int64_t>(mine->operations);
  }
  if (exchange.maximum(all).empty()) throw LeftOut();
  rounds = static_cast<std::uint64_t>(all.back());
  std::map<int, Place> places;
  for (int r = 0; r < size; ++r) {
    if (of(r)[0] > 0)
      places[r] = {static_cast<std::uint64_t>(of(r)[0] - 1), static_cast<std::uint64_t>(of(r)[1]),
                   static_cast<std::uint64_t>(of(r)[2])};
  }
  return places;
}

// The place at which the worker of that rank, or its twin, goes on. In rounds all go on at one: the
// furthest one's, whose last step may have gone on without the others' blocks.
const Place& place_in(const std::map<int, Place>& places, int rank, bool in_rounds) {
  const auto own = places.find(rank);
  if (!in_rounds && own != places.end()) return own->second;
  const auto steps_of = [](const auto& place) { return place.second.steps; };
  return std::ranges::max_element(places, {}, steps_of)->second;
}

// The members alone find each other there: nobody of another epoch does.
std::string channel_of(const std::string& optimizer, const Epoch& epoch) {
  const std::string text = to_text(epoch);
  return fmt::format("{}.{}-{:08x}", optimizer, epoch.number, crc32c(std::as_bytes(std::span(text))));
}

// The members of the present epoch; before the first one, the workers that begin the run.
Epoch next_epoch(const Epoch& present, const World& world, std::uint64_t number) {
  Epoch next{.number = number, .lives = present.lives, .run = present.run};
  if (!next.lives.empty()) return next;
  for (int seat = 0; seat < world.initial_size.value_or(world.size); ++seat) next.lives[seat] = 1;
  return next;
}

std::string beside_key(std::size_t i) { return fmt::format("beside.{}", i); }

}  // namespace

void check_rejoin(const World& world, const Options& options, torch::optim::Optimizer* inner) {
  if (!world.rejoin || world.size == 1) return;
  if (const std::string why = not_for_rejoin(options); !why.empty())
    throw UsageError("rejoin is not for " + why);
  if (dynamic_cast<SavedElsewhere*>(inner) != nullptr)
    throw UsageError("rejoin is not for an optimizer written in Python, whose state Starling cannot send");
  if (inner != nullptr) TorchState::of(*inner);  // throws
}

void Optimizer::connect(std::size_t first_group) {
  Engine& e = *engine_;
  const World& world = e.world;
  if (e.exchange) {
    wait_for_all();
    // Blocks in flight are sent again from the parameters, which have the same values.
    e.stand_still();
    leave_epoch();
    e.disconnect();
  }
  const Schedule schedule = e.schedule();
  const std::string rule = e.inner ? "another optimizer" : rule_name(e.rule);
  Terms terms = terms_of(e.options, schedule, rule, e.blocks.size(), param_groups_, e.buffers, e.frozen);
  terms.emplace_back("STARLING_PARTITION", world.partition == Partition::pause ? "pause" : "continue");
  terms.emplace_back("STARLING_SILENT", fmt::format("{} ms", world.timeouts.silent.count()));
  if (world.rejoin && world.size > 1 && !e.membership) {
    e.membership = std::make_unique<Membership>(world, e.channel, checksum_of(terms));
    if (e.membership->goes_on()) {
      e.spread = std::exchange(e.frozen, {});
      return join();
    }
  }
  Epoch epoch = next_epoch(e.epoch, world, static_cast<std::uint64_t>(e.connections++));

  failpoint("rendezvous");
  std::optional<Gathering> all(std::in_place, world, fmt::format("{}.{}", e.channel, epoch.number),
                               epoch.members());
  agree(*all, terms);
  std::vector<at::Tensor> fresh;
  if (first_group == 0) {
    e.spread = std::exchange(e.frozen, {});
    fresh = e.beside();
  }
  for (std::size_t g = first_group; g < param_groups_.size(); ++g) {
    const auto& parameters = param_groups_[g].params();
    fresh.insert(fresh.end(), parameters.begin(), parameters.end());
  }
  make_equal(*all, fresh);
  if (e.membership) {
    std::vector<std::int64_t> lives(static_cast<std::size_t>(world.size));
    lives[static_cast<std::size_t>(world.rank)] = e.membership->life();
    all->maximum(lives);
    for (auto& [seat, life] : epoch.lives) life = lives[static_cast<std::size_t>(seat)];
    if (epoch.run == 0) epoch.run = epoch.lives.begin()->second;
  }
  all.reset();
  open(epoch, world);
  attach_scheme();
  e.scheme->begin();
  if (e.membership) e.membership->set_epoch(epoch);
}

// Connects with the members of the epoch.
void Optimizer::open(const Epoch& epoch, const World& world) {
  Engine& e = *engine_;
  const SchemeTraits& traits = scheme_of(e.options).traits;
  const std::vector<int> members = epoch.members();
  const auto n = static_cast<int>(members.size());
  e.epoch = epoch;
  e.connections = static_cast<int>(epoch.number) + 1;
  e.of_members = n == world.size
                     ? e.schedule()
                     : schedule_for(e.options, n, world.local_size == world.size ? n : 1, world.log);
  e.cycle =
      std::max<std::uint64_t>(1, e.of_members.rounds.size()) * static_cast<std::uint64_t>(e.options.one_in);
  const std::string channel = channel_of(e.channel, epoch);
  const bool in_pairs = traits.path == Path::pairs;
  std::vector<std::size_t> sizes;  // of rounds
  for (std::size_t b = 0; b < e.blocks.size(); ++b) {
    e.blocks[b].grid.remember(e.of_members.rounds.size() * static_cast<std::size_t>(e.options.one_in));
    if (in_pairs || !e.owns(b)) continue;
    sizes.push_back(values_of(e.blocks[b], e.of_members, e.options));
  }
  ExchangeOptions exchange_with = exchange_options(world);
  exchange_with.patience.max_wait = e.options.max_wait;
  exchange_with.contents = contents_of(e.options);
  exchange_with.usual = e.usual;
  exchange_with.away = epoch.away(world.size);
  exchange_with.needs_all = !e.is_renewed();
  exchange_with.renewable = e.membership != nullptr;
  // In pairs, the exchange's edges only serve the exact averages.
  e.exchange = std::make_unique<Exchange>(
      world.make_transport(world, channel),
      in_pairs ? without_neighbours(world.size) : e.of_members.for_ranks(members, world.size), sizes,
      std::move(exchange_with));
  if (traits.path == Path::gradients) {
    e.collectives = make_collectives(world, channel);
  } else {
    e.exchange->meet();
  }
  if (e.options.hierarchy == "node") {
    World inside = world;
    inside.rank = e.node.place;
    inside.size = e.node.size;
    e.inside_node = make_collectives(inside, fmt::format("{}-node-{}", channel, world.rank / e.node.size),
                                     world.rank - e.node.place);
  }
}

void Optimizer::attach_scheme() {
  Engine& e = *engine_;
  if (!e.scheme) make_scheme();
  const std::vector<int> members = e.epoch.members();
  const Schedule schedule = e.of_members.for_ranks(members, e.world.size);
  const std::string channel = channel_of(e.channel, e.epoch) + "-gossip";
  e.scheme->attach({.schedule = schedule,
                    .of_members = e.of_members,
                    .members = members,
                    .renewed = e.is_renewed(),
                    .usual = e.usual,
                    .exchange = e.exchange.get(),
                    .collectives = e.collectives.get(),
                    .inside_node = e.inside_node.get(),
                    .make_transport = [&] { return e.world.make_transport(e.world, channel); }});
  if (e.outer) e.outer->attach(e.blocks);
}

void Optimizer::make_scheme() {
  Engine& e = *engine_;
  const SchemeInfo& info = scheme_of(e.options);
  if (e.inner != nullptr) {
    e.local.emplace(e.blocks, [&e] { e.inner->step(); }, e.clipping);
  } else {
    const auto rule = [this](int group) -> const Rule& {
      return rule_of(param_groups_[static_cast<std::size_t>(group)]);
    };
    e.local.emplace(e.blocks, rule, e.clipping);
  }
  const SchemeParts parts{e.blocks, *e.local, e.world, e.options, &e.node};
  e.scheme = e.options.hierarchy == "node" ? info.make_in_nodes(parts) : info.make(parts);
  if (e.options.outer != "none") e.outer.emplace(e.options, e.options.outer == "nesterov");
}

// Adds what the present connections have counted to that of the earlier ones, and detaches the
// scheme. Does nothing if that was done: this worker was left out while it met the next epoch.
void Optimizer::leave_epoch() {
  Engine& e = *engine_;
  settle(e.blocks);
  if (!e.scheme->is_attached()) return;
  e.before = counted();
  e.rounds_before += e.exchange->round();
  e.before.lost.clear();  // only of the present epoch
  e.usual = e.scheme->usual();
  e.scheme->detach();
}

// A parameter that is not finite stays so. One that was not sent yet is looked for before another
// worker may get this one's state.
bool Optimizer::is_spoiled() const {
  return (!engine_->scheme->sent_finite() || engine_->membership->has_news()) &&
         !std::ranges::all_of(param_groups_, [&](const torch::optim::OptimizerParamGroup& group) {
           return std::ranges::all_of(group.params(), is_finite);
         });
}

// Leaves the run, and comes in again with the state of another worker.
void Optimizer::join_again() {
  leave_epoch();
  engine_->disconnect();
  join();
}

// Without memory, descriptors or a store for it, newcomers ask another worker, and this one trains
// on.
void Optimizer::give_state(const std::map<int, std::int64_t>& newcomers) {
  if (newcomers.empty()) return;
  Engine& e = *engine_;
  try {
    OptimizerState all = state(/*values=*/true, /*with_scheme=*/false);
    const std::vector<at::Tensor> beside = e.beside_state();
    for (std::size_t i = 0; i < beside.size(); ++i) all.tensors.emplace(beside_key(i), beside[i]);
    failpoint("join");
    const auto copy = std::make_shared<MemoryFile>();
    const Digest written = save_tensors(copy->open(), all.tensors, all.metadata);
    for (const auto& [seat, life] : newcomers) e.membership->donate(seat, life, copy, written.crc32c);
  } catch (const std::exception& failure) {
    e.world.log(Level::warning,
                fmt::format("newcomers cannot have this worker's state: {}", one_line(failure)));
    e.membership->decline(newcomers);
  }
  e.scheme->resume();
}

// Before a step. False: this worker was out of the run, and has come in again as another's twin.
bool Optimizer::keep_membership() {
  Engine& e = *engine_;
  if (!e.membership) return true;
  const bool is_apart = e.scheme->standing() == Standing::apart;
  if (is_apart || is_spoiled()) {
    const std::string_view what = is_apart ? "have jumped away from the others'" : "are not finite";
    if (e.steps > e.sound_since + kSound) e.spoiled = 0;
    if (++e.spoiled > kMostSpoiled)
      throw Error(
          fmt::format("this worker's parameters {} again: it has taken the state of another worker {} times, "
                      "and ends",
                      what, kMostSpoiled));
    e.world.log(Level::warning,
                fmt::format("this worker's parameters {}: it takes the state of another worker", what));
    join_again();
    e.sound_since = e.steps;
    return false;
  }
  Membership& membership = *e.membership;
  membership.note_departed(e.exchange->departed());
  if (!membership.has_news() && !e.exchange->renewal_called()) return true;
  // Newcomers wait until this worker knows that its parameters are sound.
  if (counts(/*waits=*/true))
    give_state(membership.wanted([&](int seat) { return e.exchange->hears(seat); }));
  const std::set<int> away = membership.leave_out();
  try {
    if (membership.is_out()) throw LeftOut();
    if (!away.empty())
      e.world.log(Level::warning, name_of_workers(away) + " stayed away: a new epoch begins without");
    if (!away.empty() || !membership.ready().empty() || e.exchange->renewal_called())
      renew(/*between_steps=*/true);
    return true;
  } catch (const LeftOut& out) {
    e.world.log(Level::warning, fmt::format("{}: it joins them again", out.what()));
  }
  join_again();
  return false;
}

// Without a store the members of a new epoch do not find each other: waits for it as long as for
// workers that come to a run. Throws LeftOut.
std::map<int, Place> Optimizer::meet(const Epoch& epoch, const std::optional<Place>& mine) {
  Engine& e = *engine_;
  const World& world = e.world;
  const Time end = Clock::now() + world.timeouts.meet;
  Seldom waits;
  for (bool is_open = false; !is_open;) {
    try {
      open(epoch, e.membership->hasty_world(epoch));
      is_open = true;
    } catch (const StoreLost& lost) {
      const std::string why = fmt::format("this worker cannot meet the others: {}", lost.what());
      if (Clock::now() >= end || world.interrupted() || e.membership->is_out()) throw LeftOut(why);
      if (const auto more = waits.say(Clock::now())) world.log(Level::warning, why + *more);
      std::this_thread::sleep_for(kAskStoreAgain);
    }
  }
  return tell_places(*e.exchange, world.rank, world.size, mine, e.rounds_before);
}

// The members agree on the next epoch over the edges of this one, then connect anew.
void Optimizer::renew(bool between_steps) {
  Engine& e = *engine_;
  Membership& membership = *e.membership;
  const auto size = static_cast<std::size_t>(e.world.size);
  e.stand_still();
  e.exchange->call_renewal();
  std::vector<std::int64_t> agreed(size + 1);  // the life of the newcomer in each seat; the number
  for (const auto& [seat, life] : membership.ready()) agreed[static_cast<std::size_t>(seat)] = life;
  agreed.back() = e.connections;
  const std::set<int> there = e.exchange->renew(agreed);
  if (there.empty()) throw LeftOut();
  Epoch next{.number = static_cast<std::uint64_t>(agreed.back()), .run = e.epoch.run};
  for (std::size_t seat = 0; seat < size; ++seat) {
    if (agreed[seat] > 0) next.lives[static_cast<int>(seat)] = agreed[seat];
  }
  for (const int seat : there) next.lives[seat] = e.epoch.lives.at(seat);

  const Place mine{e.steps, e.made, e.exchange->operations()};
  // A neighbour that is a step ahead has mixed what this worker has not. In an average's scope, the
  // parameters are not this worker's own.
  if (e.averages == 0) e.scheme->drain();
  leave_epoch();
  const std::unique_ptr<Exchange> last = std::move(e.exchange);  // until all have the result
  membership.set_epoch(next);
  const auto places = meet(next, between_steps ? std::optional(mine) : std::nullopt);
  const Place& place = between_steps ? place_in(places, e.world.rank, !averages_in_pairs(e.options)) : mine;
  if (place.steps > mine.steps)
    e.world.log(Level::info, fmt::format("this worker goes on after step {}, where the others are, not {}",
                                         place.steps, mine.steps));
  e.steps = place.steps;
  e.made = place.made;
  e.exchange->set_operations(place.operations + 1);
  e.set_grids({});
  attach_scheme();
  e.scheme->restart();
  e.scheme->begin();
  // The averages until here are no parts of an operation that was called off.
  for (int scope = 0; scope < e.operations; ++scope) e.exchange->begin_operation();
  if (e.averages > 0) e.stand_still();
  const std::vector<int> members = next.members();
  e.world.log(Level::info,
              fmt::format("epoch {} has {}", next.number, name_of_workers({members.begin(), members.end()})));
}

// Comes into a run that goes on.
void Optimizer::join() {
  Engine& e = *engine_;
  Membership& membership = *e.membership;
  const c10::AutoGradMode no_gradient(false);
  OptimizerState given;
  std::optional<Epoch> epoch;
  std::map<int, Place> places;
  for (int turn = 1; places.empty(); ++turn) {
    if (e.world.interrupted()) throw Error("interrupted while this worker joined the run");
    if (turn > kMostTurns) throw Error("this worker cannot join the run: the others went on without it");
    given = read_state(SafetensorsReader(membership.take_state().open()));
    epoch = membership.enter();
    if (!epoch) continue;
    failpoint("join");
    try {
      places = meet(*epoch, std::nullopt);
    } catch (const LeftOut& out) {
      e.world.log(Level::warning, fmt::format("{}: it asks again", out.what()));
    }
    if (places.empty()) e.disconnect();
  }
  const Place& twin = place_in(places, membership.donor(), !averages_in_pairs(e.options));
  e.exchange->set_operations(twin.operations + 1);
  e.steps = twin.steps;
  attach_scheme();
  std::vector<at::Tensor> beside = e.beside_state();
  for (std::size_t i = 0; i < beside.size(); ++i) {
    const auto there = given.tensors.extract(beside_key(i));
    if (!there.empty()) beside[i].copy_(there.mapped());
  }
  adopt(std::move(given));
  e.made = twin.made;
  e.set_grids({});
  e.scheme->begin();
  membership.set_epoch(*epoch);
  ++e.joins;
  e.world.log(Level::warning,
              fmt::format("this worker has joined the run after step {}, with the state of worker {}",
                          e.steps, membership.donor()));
}

}  // namespace starling
