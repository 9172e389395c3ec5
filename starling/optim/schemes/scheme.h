// A scheme: how workers mix, and how it combines mixing with the local optimizer. One file holds
// one whole scheme: its equation, paper, SchemeInfo, step and state. table.h lists all schemes.
//
// A scheme is constructed once and attached to each new connection. It reaches the parameters
// through its blocks, and the neighbours through the connection's exchange.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/exchange/contents.h"
#include "starling/exchange/exchange.h"
#include "starling/gossip/gossip.h"
#include "starling/optim/blocks.h"
#include "starling/optim/local_step.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/pass.h"
#include "starling/optim/schemes/advice.h"
#include "starling/optim/schemes/options.h"
#include "starling/transport/c10d/collectives.h"

namespace starling {

// A scheme's connection. Its parts live until detach(), the schedules during attach() only.
struct Connection {
  const Schedule& schedule;            // for all ranks; those that are no members have no neighbours
  const Schedule& of_members;          // the same for the members alone, by their place
  std::vector<int> members{};          // ranks
  bool renewed = false;                // not the first one: a member may be gone before all have met
  std::vector<UsualDistance> usual{};  // Scheme::usual() on the connection before
  Exchange* exchange = nullptr;        // with rounds
  Collectives* collectives = nullptr;  // with Path::gradients
  Collectives* inside_node = nullptr;  // with a hierarchy
  // Makes another transport to the same workers, with Path::pairs.
  std::function<std::unique_ptr<Transport>()> make_transport{};
};

// Visits a scheme's state beside the parameters: to save it, to load it or to list its names.
class StateVisitor {
 public:
  using Access = std::function<void(Block&, const std::function<void(const at::Tensor& values)>&)>;
  struct Numbers {
    std::vector<double> fresh;
    std::vector<double> now;
    std::function<void(std::span<const double>)> set;
    std::function<std::string(std::span<const double>)> refusal;  // why they are refused, or ""
  };

  virtual ~StateVisitor() = default;
  // One float for each value of each block. `access(block, f)` calls f, which may write them.
  virtual void values(const std::string& name, Fresh fresh, const Access& access) = 0;
  virtual void numbers(const std::string& name, const Numbers& numbers) = 0;
};

// One node, as one of its workers sees it.
struct LocalNode {
  int size = 1;              // workers
  int place = 0;             // this worker's place among them
  std::vector<int> owner{};  // by block: the owner's place
};

// The constructor arguments of a scheme. They outlive the scheme.
struct SchemeParts {
  std::vector<Block>& blocks;
  LocalStep& local;
  const World& world;
  const Options& options;
  const LocalNode* node = nullptr;  // with a hierarchy
};

class Scheme {
 public:
  virtual ~Scheme() = default;
  Scheme(const Scheme&) = delete;
  Scheme& operator=(const Scheme&) = delete;

  // Called for each connection; detach() ends the earlier one. Blocks may have been added since.
  // Their state begins fresh.
  virtual void attach(const Connection& connection) { exchange_ = connection.exchange; }
  virtual void detach() { exchange_ = nullptr; }
  bool is_attached() const { return exchange_ != nullptr; }
  // Sends what neighbours need for the first step, after attach(), restart() or take_mean().
  virtual void begin() {}
  // Forgets everything in flight. The state begins fresh from the parameters.
  virtual void restart() {}
  // Instead, if the parameters have become all workers' mean (Options::mean_every): the state goes
  // on, but for what was relative to the parameters before.
  virtual void take_mean() { restart(); }
  // Mixes what is in flight, without a step, so that both ends have mixed it. All workers of the
  // connection stand still, and it ends after this.
  virtual void drain() {
    for (Block& block : blocks_) {
      if (sends_ahead()) mix(block, finish(exchange(), block), {});
    }
  }
  virtual void step() = 0;
  virtual void state(StateVisitor&) {}

  // Whether begin() and step() leave a round in flight, which the next step finishes.
  virtual bool sends_ahead() const { return false; }
  // The weight of each block in the average over all workers. Empty: all are equal.
  virtual std::vector<double> weights() const { return {}; }
  // Whether later backward passes average gradients, in a scheme that does so. See NoSync.
  virtual void set_sync(bool) {}
  // This worker makes no gradient until resume(), or the next step(). Its gossip goes on.
  virtual void stand_by() {}
  // Gossip stands still from pause() to resume(), or to the next step().
  virtual void pause() {}
  virtual void resume() {}
  // While gossip stands still: copies its result into the parameters.
  virtual void renew() {}
  // Counts since attach(), in addition to the exchange's counts.
  virtual ExchangeStatistics counted() const { return {}; }
  // With Path::pairs.
  virtual std::optional<GossipStatistics> gossip() const { return {}; }
  // Whether the last exchange has sent finite blocks only.
  virtual bool sent_finite() const { return exchange_->sent_finite(); }
  // See exchange/jump_guard.h.
  virtual Standing standing() const { return exchange_->standing(); }
  virtual std::vector<UsualDistance> usual() const { return exchange_->usual(); }

 protected:
  explicit Scheme(const SchemeParts& parts)
      : blocks_(parts.blocks), local_(parts.local), world_(parts.world), options_(parts.options) {}
  Exchange& exchange() const { return *exchange_; }

  std::vector<Block>& blocks_;
  LocalStep& local_;
  const World& world_;
  const Options& options_;

 private:
  Exchange* exchange_ = nullptr;
};

// ---------------------------------------------------------------- a scheme in the table

enum class Path {
  ahead,      // sent at the end of a step, mixed in the next: an exchange has a whole iteration
  inside,     // sent and mixed within step()
  pairs,      // two workers at a time, beside training, on an own thread; there are no rounds
  gradients,  // gradients are averaged over all workers, within backward()
};

enum class EdgeKind {
  symmetric,  // a topology whose rounds average
  lasting,    // a topology of one round, each edge in both directions
  directed,   // any topology: one worker gives, the other takes
  own,        // own rounds: the topology is not used
  none,       // no neighbours
};

struct RefusedWire {
  Wire wire;
  std::string_view reason;
};

// For a scheme that takes fp32 alone.
constexpr std::array<RefusedWire, 4> all_but_fp32(std::string_view reason) {
  return {{{Wire::bf16, reason}, {Wire::fp16, reason}, {Wire::int8, reason}, {Wire::int4, reason}}};
}

// Without gradients, and with a constant learning rate.
enum class Agrees {
  as_topology,     // x <- W x, with the rounds' W
  in_a_period,     // exactly, after a period of the scheme's own rounds
  in_its_own_way,  // not by W alone
};

struct SchemeTraits {
  Path path = Path::ahead;
  EdgeKind edges = EdgeKind::symmetric;
  Schedule (*rounds)(int workers) = nullptr;  // with EdgeKind::own and EdgeKind::none
  // The content of a round's messages (optim/sent_size.h); by default the parameters. Wire and
  // one_in come from the options.
  Contents contents{};
  // The number of a block's values on the wire, if they are the scheme's own. It reads shapes and
  // strides only. Every parameter of two or more dimensions then lies in one block.
  std::size_t (*wire_values)(const Block& block, const Schedule& schedule, const Options&) = nullptr;
  std::span<const RefusedWire> refused_wires{};
  std::string_view all_values{};  // why one_in must be 1; empty: it may be larger
  std::string_view own_rule{};    // why only Starling's rules work; empty: any optimizer works
  bool on_host = false;           // works on the host: parameters on a GPU are copied there and back
  bool local_steps = false;       // takes Options::every: steps without an exchange change nothing else
  bool takes_outer = false;       // what step() leaves is a merged point: an outer step may follow it
  int outer_options = 0;          // of outer_lr and outer_momentum, so many it uses for a step of its own
  bool exact = false;             // a constant learning rate reaches the optimum of all workers' losses
  bool sums_gradients = false;    // over workers, so no worker may scale or skip its own
  bool equal = false;             // but for lost exchanges, all workers are equal after each step
  Agrees agrees = Agrees::in_its_own_way;
  int kept = 0;                // floats per parameter beside it, its gradient and the wire blocks
  int kept_per_neighbour = 0;  // the same, for each neighbour
  int kept_if_local = 0;       // the same, with Options::every above 1
  // When a worker joins, what becomes of the scheme's own state on all workers; empty: it has none.
  // Path::gradients takes no newcomers.
  std::string_view at_a_join{};
};

struct SchemeInfo {
  std::string_view name;     // as users write it
  std::string_view summary;  // one line: "NAME: what it does"
  std::string_view paper;
  SchemeTraits traits;
  SchemeAdvice advice{};
  std::span<const SchemeOption> options{};
  std::unique_ptr<Scheme> (*make)(const SchemeParts&) = nullptr;
  // With Options::hierarchy "node"; null: the scheme does not support it.
  std::unique_ptr<Scheme> (*make_in_nodes)(const SchemeParts&) = nullptr;
  // Throws UsageError if values contradict each other, or the schedule.
  void (*check)(const Options&, const SchemeSettings&, const Schedule&) = nullptr;
  // The path with these options, if they change it.
  Path (*path)(const SchemeSettings&) = nullptr;
  // With these options only one in so many of its steps makes an exchange; null: each.
  int (*steps)(const SchemeSettings&) = nullptr;

  Path path_of(const SchemeSettings& settings) const {
    return path != nullptr ? path(settings) : traits.path;
  }
  // Whether all workers are at the same step, and may differ: Options::mean_every.
  bool takes_means() const {
    return !traits.equal && (traits.path == Path::ahead || traits.path == Path::inside);
  }
  bool uses_topology() const { return traits.rounds == nullptr; }
};

template <class S>
std::unique_ptr<Scheme> make(const SchemeParts& parts) {
  return std::make_unique<S>(parts);
}

}  // namespace starling
