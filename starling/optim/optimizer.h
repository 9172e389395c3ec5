// The optimizer that trains without a global all-reduce.
//
//   starling::World world = starling::World::from_environment();
//   starling::Optimizer optimizer(*model, starling::AccumAdamW{.lr = 1e-3, .window = 8}, {.topology = "base-2"}, world);
//   for (auto& batch : loader) {
//     optimizer.zero_grad();
//     loss(model, batch).backward();
//     optimizer.step();
//   }
//   { starling::Consensus average(optimizer); evaluate(model); }   // the average model, in this scope
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "starling/checkpoint/safetensors.h"
#include "starling/kernels/wire.h"
#include "starling/optim/loss_scale.h"
#include "starling/optim/rules.h"
#include "starling/optim/scheme_choice.h"
#include "starling/world/world.h"

namespace torch::nn {
class Module;
}

namespace starling {

class Scheme;
struct ExchangeStatistics;
struct GivenState;

struct Options {
  // A name that make_schedule() knows, or a file that ends in .toml or .json. Not used by schemes with rounds of
  // their own or without neighbours.
  std::string topology = "base-2";
  // How workers mix: a name and the scheme's own options (scheme_choice.h). `starling schemes` and docs/schemes.md
  // list them all.
  SchemeChoice scheme{};
  // Number format of parameters between workers. With bf16 and fp16 half the bytes cross the link and workers agree to
  // the last bit of that format; int8 and int4 send a quarter and an eighth, and agree the better the nearer they are
  // already (docs/wires.md). The sum of all parameters is kept whatever the format. Not used by all-reduce.
  Wire wire = Wire::fp32;
  // Of the random times and pairs of schemes that average beside training. The same seed need not give the same
  // run: the arrival times of messages decide, too.
  std::uint64_t seed = 0;
  // random-k: in a round only one value in so many is sent, in the format of `wire`, and mixed; the same ones by all workers,
  // others in the next round, and each of them once in `one_in` periods of the topology (docs/wires.md). So many times fewer
  // bytes, and so many times less mixing. From 1, all values, to 1024. With a scheme that chooses its values by
  // itself (top-k) the values that changed most since they were sent go, with their indices (8 bytes each).
  int one_in = 1;
  // "node": one gossips for a node of workers_per_node consecutive ranks, block by block: they average their gradients, each
  // keeps the state of its share of the blocks and exchanges these with the same place on the nodes that `topology` names.
  // With a scheme that takes one and a rule of Starling's only; clip is of the node's mean gradient; NoSync as with all-reduce.
  // Statistics::bytes_sent has what leaves for other nodes. "none": every worker for itself.
  std::string hierarchy = "none";
  int workers_per_node =
      0;  // for schedules that know of nodes, and the hierarchy; 0: the launcher's local world size
  std::int64_t block_bytes = 25 << 20;  // largest block: min(block_bytes, total / 8), at least 256 KB
  // Longest that step() waits for a late neighbour that is alive. Not set: World::timeouts.stalled. Once it has
  // passed, the worker goes on without that neighbour; runs are then no longer bit-equal.
  std::optional<std::chrono::milliseconds> max_wait{};
  // Largest norm of this worker's whole gradient, with all-reduce of the mean gradient: a larger one is scaled down to it
  // inside step(); .grad is left as it is. 0: not clipped. One read of the gradients, as is skip_not_finite, or both together.
  double clip = 0;
  bool skip_not_finite = false;  // a step whose gradient is not finite mixes only, and is counted as skipped
  // step() leaves .grad full of zeros, in the pass that reads it, so that zero_grad() is not needed. Costs less than
  // zero_grad(false); zero_grad(), which frees them, costs a new allocation in the next backward(). Needs a rule of Starling's.
  bool clear_gradients = false;
  // For parameters in float16: the loss is multiplied by loss_scale() before backward(), and step() divides the gradient by it.
  // A step whose gradient is not finite mixes only, is counted as skipped, and halves this worker's scale; with all-reduce
  // gradients, skipped steps and scales are those of all. Needs a rule of Starling's. Not set: 1 throughout.
  std::optional<LossScaling> loss_scaling{};
};

// Counted since construction, by this worker.
struct Statistics {
  std::uint64_t rounds = 0;          // exchanges started; of asynchronous schemes, averagings of all blocks
  std::uint64_t committed = 0;       // blocks mixed, summed over edges
  std::uint64_t aborted = 0;         // blocks not mixed because a neighbour was late, gone or sent nonsense
  std::uint64_t late = 0;            // blocks mixed late, after a broken connection was mended
  std::uint64_t bytes_sent = 0;      // by the edges; for all-reduce computed: 2M(n-1)/n each time
  std::uint64_t bytes_in_place = 0;  // of these, what neighbours on this host read where it lies
  std::uint64_t directed_aborted =
      0;  // of the aborted ones, on directed edges: each moves the mean a little (not of push-sum)
  double seconds_waiting = 0;  // inside step(), for neighbours; with all-reduce at the end of backward()
  std::uint64_t skipped = 0;   // steps whose gradient was not finite, under Options::skip_not_finite
  std::vector<int> lost;       // workers that are gone

  // With schemes that average in pairs, since the last parameter group was added: this worker's averagings on each
  // edge. They count in gradients of this worker, or in its stretches of local steps.
  struct Edge {
    int rank = 0;                // the neighbour
    std::uint64_t averaged = 0;  // averagings of all blocks
    double staleness = 0;        // gradients between two of them, in the mean
    std::uint64_t stalest = 0;   // and at most, up to now
    double distance = 0;         // RMS of x_j - x_i in the last one
  };
  std::vector<Edge> edges{};  // by rising rank
  // How this worker's asking for averagings went, in the same time. A neighbour that answers after all where one did not wait so
  // long may find its asker in another averaging: then its blocks are counted as aborted.
  struct Questions {
    std::uint64_t asked = 0;
    std::uint64_t refused = 0;     // of these: the neighbour was busy, and was asked again later
    std::uint64_t unanswered = 0;  // of these: nothing was heard in time
    std::uint64_t dropped =
        0;  // averagings that were due while too many others were, or with one that was not there
  };
  Questions questions{};
  // That all workers have made, in the same time, as far as this one has heard of the others: they tell with each question and
  // answer. With local steps those in whole stretches.
  std::uint64_t gradients_of_all = 0;
  // The effective rate: averagings for each gradient. So many others have moved x, in the mean, between the moment at which a
  // gradient's x was taken and that at which it is applied.
  double rate = 0;
  // RMS of the edges' distances. Over all workers and edges, where each worker is as far from its neighbours as from others, that
  // is sqrt(2) of the consensus distance; on sparse graphs less. It costs nothing to know.
  double distance = 0;
};

// How a piece of a scheme's state begins if a saved state lacks it: as zeros, as the parameter, as it is now.
enum class Fresh { zero, parameter, kept };

// A piece of the state that is the scheme's: one tensor for each parameter, named NAME.PARAMETER, or a few
// numbers in one tensor NAME, which then begin as these.
struct SchemeState {
  std::string name;
  Fresh fresh = Fresh::zero;
  std::optional<std::vector<double>> numbers{};
};

// See Optimizer::state().
struct OptimizerState {
  Metadata metadata;
  std::map<std::string, at::Tensor> tensors;
  std::vector<SchemeState> of_scheme{};  // what of the tensors is the scheme's; not saved
};

class Optimizer : public torch::optim::Optimizer {
 public:
  // All parameters of the module that require a gradient, as one group, and the module's buffers (for Consensus). One
  // that is unfrozen later is added as a group of its own; one that is frozen later goes on being mixed.
  // Parameters must be float32, bfloat16 or float16 on the CPU or on CUDA devices, and dense in memory (contiguous or
  // channels_last, not a slice), and stay of their type and where they are; gradients are of the same. CUDA devices
  // need a scheme that takes them (`starling schemes NAME`; with Path::gradients all parameters on one), and no
  // hierarchy. There the rule's state and masters are on the device too, and step() puts its work into torch's
  // current stream and does not wait for it (cuda/cuda.h); a scheme in pairs waits for backward (GossipStream). A
  // model may mix types.
  // Of a parameter in bfloat16 or float16 the optimizer keeps an fp32 master: rule, mixing, wire and averages are of
  // the master, and the parameter is the master rounded to nearest even. (With hierarchy "node" they must be float32.)
  // Where a parameter was changed between steps (load_state_dict, clipped weights), so that it no longer is the master
  // rounded, the master takes its value; elsewhere it keeps all its bits.
  // Collective: blocks until all workers have constructed theirs (at most world.timeouts.meet). Rank 0's parameters
  // and buffers reach every worker and a checksum proves it. Throws UsageError where options make no sense or differ
  // between workers (both values in the message), Error where a worker does not come.
  Optimizer(torch::nn::Module& module, Rule rule, Options options, const World& world);
  // From parameter groups, each with a rule_options(...) of the same rule or none (then `rule` is taken). Buffers are
  // left alone where they are not given. A parameter is given once, however many layers share it.
  Optimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, Rule rule, Options options,
            const World& world, std::vector<at::Tensor> buffers = {});
  Optimizer(std::vector<at::Tensor> parameters, Rule rule, Options options, const World& world);
  // Around an optimizer that Starling did not write: its step() is the local rule, and it must outlive this one. Learning
  // rates are set, parameter groups added and gradients clipped there. Its parameters must be float32: it knows of no
  // master, and would step the rounded parameters (UsageError). With a module its buffers are averaged too. save()
  // and load() know the state of torch's SGD, Adam, AdamW, Adagrad and RMSprop; others they refuse: UsageError.
  Optimizer(torch::optim::Optimizer& inner, Options options, const World& world,
            std::vector<at::Tensor> buffers = {});
  Optimizer(torch::nn::Module& module, torch::optim::Optimizer& inner, Options options, const World& world);
  ~Optimizer()
      override;  // tells the neighbours not to wait for this worker any longer; never blocks for long

  // Hides torch's own, which from 2.15 on drops the rule of a group: call it on this class. step() says what follows.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // One step: for each block finish the exchange, mix and update in one pass, start the next exchange. Waits for
  // neighbours as Options::max_wait says. Parameters without a gradient are mixed but not updated.
  // With a closure: calls it with gradients enabled first and returns its loss.
  // After add_param_group(), which all workers must call before the same step, the step is collective: as at construction
  // rank 0's values of the new parameters reach every worker of the world. Parameters added to a group that was there
  // before are refused.
  // Parameters may be changed between two steps, with gradients disabled. Not past autograd, as through .data in Python or raw
  // pointers: where torch's version does not count it, neighbours keep their part of what was before.
  at::Tensor step(LossClosure closure = nullptr) override;
  // For losses that somebody else scales, as torch.amp.GradScaler does: the next step() takes gradients times `scale`, before it
  // clips them. None: it mixes only, and is counted as skipped. Needs a rule of Starling's, and no Options::loss_scaling, else
  // UsageError.
  void scale_gradients(std::optional<float> scale);
  // What the loss is to be multiplied by before backward(), for all passes up to the next step(): Options::loss_scaling.
  double loss_scale() const;

  // The average of `values` over all workers that are there, exact, over the edges; every worker must call it, with
  // equal sizes. Blocks until all have. Returns how many took part.
  int average(std::span<float> values);
  // The largest of each value over all workers; as average().
  int maximum(std::span<std::int64_t> values);
  // Collective, before something for which asynchronous gossip pauses: until all are here it goes on, so that nobody who is
  // slow is left alone. With other schemes nothing.
  void wait_for_all();
  // This worker makes no gradient until its next step(). wait_for_all() says so, too: by itself it is for who waits in another way.
  // Then nobody pushes mass or tracked gradients to it (async-push-sum, async-push-pull), which it would not pass on.
  void stand_by();
  // RMS distance of the workers' parameters to their average: sqrt(1/n Sum_i |x_i - mean|^2 / d). Collective.
  double consensus_distance();

  // What this worker needs to go on as if it had not stopped. Between two steps. Tensors:
  //   model.NAME     the module's parameters and buffers, without a module those of the groups as model.GROUP.INDEX
  //   master.NAME    the fp32 master of a parameter in bfloat16 or float16
  //   m. v. b.NAME   the rule's state, as kernels/update.h names it; around torch's optimizer exp_avg.NAME and so on
  //   the scheme's   as OptimizerState::of_scheme names them, and the scheme's file describes them
  //   loss_scale     where losses are scaled: the scale, and the finite steps since it last changed
  //   steps          per parameter, in the groups' order: how many had a gradient
  //   options.GROUP  the group's rule options, the learning rate first
  //   rng            torch's random numbers on the CPU
  // and, as metadata, the place in the schedule; with int8 and int4 also the grids of the blocks, which are set anew
  // where a state of another wire or other block sizes is taken (those of asynchronous schemes, one for each edge, go
  // on as they are). The model's tensors are the parameters and buffers themselves, all others are copies, on the CPU.
  // With a hierarchy m., v. and b. have only the values that this worker keeps, in memory order (none: there is no such
  // tensor), steps count only for these, and a state is taken with the same share of the same hierarchy alone. Of
  // asynchronous schemes what is under way ends first (or is given up after a second), and gossip stands still until
  // the next step(): so where all workers have their states before any of them steps again, these are of one moment.
  // Without `values` nothing of the parameters' size is copied: m., v., b., master. and what the scheme keeps for
  // each parameter are of the device "meta", with their names, types and shapes alone.
  OptimizerState state(bool values = true) const;
  // Collective, between two steps: every worker takes a state of the same rule and parameters. What was in flight is sent
  // again. If any of them cannot take its own, all throw Error and none has changed anything.
  void set_state(const OptimizerState& state);
  // The same as a safetensors file (synced, but not written in one go: save_checkpoint() in checkpoint.h does that, for
  // all workers together). Returns the file's size and checksum. Throws Error.
  Digest save(const std::string& file) const;
  void load(const std::string& file);  // as set_state()
  // The place in the schedule alone, where the rest is saved elsewhere: of the first round that starts from the parameters
  // as they stand. restart() is collective; what was in flight is sent again, and the scheme's state begins fresh.
  // Without a position this worker could not load the rest: all throw Error, and go on as they were.
  std::uint64_t position() const;
  void restart(std::optional<std::uint64_t> position);
  // Torch's archives are refused: UsageError.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  const World& world() const;
  Statistics statistics() const;
  std::int64_t parameter_count() const;
  // How much each value of a parameter counts in Consensus beside the other workers': a double for each, 1 unless
  // the scheme has weights.
  at::Tensor weights(const at::Tensor& parameter) const;
  // Parameters in each block, in the order in which blocks are updated and exchanged.
  std::vector<std::int64_t> block_sizes() const;

 private:
  friend class Consensus;
  friend class NoSync;
  struct Engine;  // engine.h
  void begin(Options options, const World& world, std::vector<at::Tensor> buffers);
  void take_new_groups();
  void keep_states();
  void connect(std::size_t first_group);
  void make_scheme();
  void go_on(std::uint64_t position, const std::function<void()>& set_scheme_state);
  void take_state(const std::string& what, const std::function<GivenState()>& give);
  ExchangeStatistics counted() const;  // since construction
  std::unique_ptr<Engine> engine_;
};

// Gradient accumulation under all-reduce: backward passes while it lives add to the worker's own .grad and send nothing. The
// first one after it, or else step(), averages the sum. Without it every pass averages what it brings, to the same result
// at the cost of sending each time. All workers must run as many passes outside of it between two steps. No effect under other
// schemes, which send in step() only.
class NoSync {
 public:
  explicit NoSync(Optimizer& optimizer);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Optimizer& optimizer_;
};

// Options of one parameter group: torch::optim::OptimizerParamGroup(parameters, rule_options(AdamW{.lr = 1e-4})).
// get_lr / set_lr work, so torch's learning-rate schedulers do.
std::unique_ptr<torch::optim::OptimizerOptions> rule_options(Rule rule);
Rule& rule_of(torch::optim::OptimizerParamGroup& group);

// While it lives, the module holds the average over all workers: parameters and floating-point buffers averaged
// exactly (of bfloat16 and float16 the masters, and the parameters are their mean rounded; with push-sum the parameters' mean is
// by the workers' weights), integer buffers (counters) at their largest. On leaving the scope each worker gets its own back.
// Collective: every worker must make one at the same step.
class Consensus {
 public:
  explicit Consensus(Optimizer& optimizer);
  ~Consensus();
  Consensus(const Consensus&) = delete;
  Consensus& operator=(const Consensus&) = delete;

  int workers() const;      // how many took part in the average
  int first() const;        // the lowest rank of these
  double distance() const;  // consensus distance, as Optimizer::consensus_distance()
  void keep();              // leave the average in the module instead of restoring

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The average without an optimizer: each tensor becomes its average over all workers of the world, exact up to rounding to
// fp32, those of integers and booleans their largest value. For once, as after training: it makes connections of its own,
// where an optimizer's Consensus has them already.
// Collective, and counted with the world's optimizers: all workers construct and average in the same order, tensors of the same
// types and sizes. Returns how many took part. Blocks and throws as the constructor of an Optimizer, and as its average().
int average(const std::vector<at::Tensor>& tensors, const World& world);

}  // namespace starling
