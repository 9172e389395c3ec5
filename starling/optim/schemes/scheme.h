// A scheme: how workers mix, and how mixing and the local optimizer are combined. One file holds one scheme
// whole: its equation and paper, its SchemeInfo, its step, its state. table.h lists them all.
//
// A scheme is constructed once and attached to each new connection. It reaches the parameters through its
// blocks, the neighbours through the connection's exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/exchange/contents.h"
#include "starling/exchange/exchange.h"
#include "starling/gossip/gossip.h"
#include "starling/optim/blocks.h"
#include "starling/optim/local_step.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/schemes/options.h"
#include "starling/transport/c10d/collectives.h"

namespace starling {

// What a scheme is attached to. All of it lives until detach().
struct Connection {
  const Schedule& schedule;
  Exchange* exchange = nullptr;        // with rounds
  Collectives* collectives = nullptr;  // with Path::gradients
  Collectives* inside_node = nullptr;  // with a hierarchy
  // Another one to the same workers, with Path::pairs.
  std::function<std::unique_ptr<Transport>()> make_transport{};
};

// Visits what a scheme keeps beside the parameters: to save it, to load it, to name it.
class StateVisitor {
 public:
  using Access = std::function<void(Block&, const std::function<void(const at::Tensor& values)>&)>;
  struct Numbers {
    std::vector<double> fresh;
    std::vector<double> now;
    std::function<void(std::span<const double>)> set;
    std::function<std::string(std::span<const double>)> refusal;  // why these are not allowed, or ""
  };

  virtual ~StateVisitor() = default;
  // A float for each value of each block. `access(block, f)` calls f, which may write them.
  virtual void values(const std::string& name, Fresh fresh, const Access& access) = 0;
  virtual void numbers(const std::string& name, const Numbers& numbers) = 0;
};

// One of the nodes, as one of its workers sees it.
struct LocalNode {
  int size = 1;              // workers
  int place = 0;             // mine among them
  std::vector<int> owner{};  // of each block, its place
};

// What a scheme is constructed from. All of it outlives the scheme.
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

  // For the first connection, and for each later one, to which detach() leads over. Blocks may have been
  // added since: their state begins fresh.
  virtual void attach(const Connection& connection) { exchange_ = connection.exchange; }
  virtual void detach() { exchange_ = nullptr; }
  // Sends what the first step needs of the neighbours. After attach() or restart().
  virtual void begin() {}
  // Forgets what was in flight. The state begins fresh, from the parameters, unless it is Fresh::kept.
  virtual void restart() {}
  virtual void step() = 0;
  virtual void state(StateVisitor&) {}

  // Whether begin() and step() leave a round in flight, which the next step finishes.
  virtual bool sends_ahead() const { return false; }
  // How much each block counts in the average of all workers; empty: all alike.
  virtual std::vector<double> weights() const { return {}; }
  // Whether the backward passes from here on average gradients, in a scheme that does; see NoSync.
  virtual void set_sync(bool) {}
  // This worker makes no gradient until resume(), or the next step(). Its gossip goes on.
  virtual void stand_by() {}
  // Gossip stands still from pause() to resume(), or to the next step().
  virtual void pause() {}
  virtual void resume() {}
  // While gossip stands still: copies what it has made of the parameters into them.
  virtual void renew() {}
  // Since attach(), beside what the exchange has counted.
  virtual ExchangeStatistics counted() const { return {}; }
  // With Path::pairs.
  virtual std::optional<GossipStatistics> gossip() const { return {}; }

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

// ---------------------------------------------------------------- what the table says of a scheme

enum class Path {
  ahead,      // sent at a step's end, mixed in the next step: the exchange has a whole iteration
  inside,     // sent and mixed within step()
  pairs,      // two workers at a time, beside training, on a thread of their own: there are no rounds
  gradients,  // gradients are averaged over all workers, within backward()
};

enum class EdgeKind {
  symmetric,  // of a topology whose rounds average
  lasting,    // of a topology of one round, each edge in both directions
  directed,   // of any topology: one worker gives what another takes
  own,        // of rounds of its own: the topology is not used
  none,       // no neighbours
};

struct RefusedWire {
  Wire wire;
  std::string_view reason;
};

struct SchemeTraits {
  Path path = Path::ahead;
  EdgeKind edges = EdgeKind::symmetric;
  Schedule (*rounds)(int workers) = nullptr;  // with EdgeKind::own and EdgeKind::none
  Contents contents{};                        // of a round; wire and one_in are the options'
  std::span<const RefusedWire> refused_wires{};
  std::string_view all_values{};  // why one_in must be 1; empty: it may be more
  std::string_view own_rule{};    // why only Starling's rules will do; empty: any optimizer
  bool on_gpu = false;            // parameters may be on CUDA devices
  bool sums_gradients = false;    // over workers: none may scale or skip its own
};

struct SchemeInfo {
  std::string_view name;     // as users write it
  std::string_view summary;  // one line: "NAME: what it does"
  std::string_view paper;
  SchemeTraits traits;
  std::span<const SchemeOption> options{};
  std::unique_ptr<Scheme> (*make)(const SchemeParts&) = nullptr;
  // With Options::hierarchy "node"; null: it does not go with one.
  std::unique_ptr<Scheme> (*make_in_nodes)(const SchemeParts&) = nullptr;
  // Throws UsageError where values do not go together, or not with the schedule.
  void (*check)(const SchemeInfo&, const SchemeSettings&, const Schedule&) = nullptr;

  bool uses_topology() const { return traits.rounds == nullptr; }
};

template <class S>
std::unique_ptr<Scheme> make(const SchemeParts& parts) {
  return std::make_unique<S>(parts);
}

}  // namespace starling
