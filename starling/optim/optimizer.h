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
#include "starling/world/world.h"

namespace torch::nn {
class Module;
}

namespace starling {

class Scheme;
struct ExchangeStatistics;
struct GivenState;

struct Options {
  // A name that make_schedule() knows, or a file that ends in .toml or .json; not used by all-reduce and ceca-2p.
  std::string topology = "base-2";
  // "cta": combine-then-adapt, the neighbours' last parameters are mixed in.
  // "all-reduce": gradients are averaged over all workers during backward(), which leaves the mean in .grad; see NoSync.
  // Those in bfloat16 and float16 are summed and sent as fp32, and their mean is rounded once.
  // "a2cid2": pairs of workers that are neighbours in any round of the topology average on a thread of their own whenever
  // both are free, with continuous momentum; step() waits for nobody (gossip/a2cid2.h). "ad-psgd": without the momentum.
  // "ad-psgd-bipartite": where the topology has two sides, workers of the one ask and those of the other answer only
  // (gossip/ad_psgd.h). "swarm": SwarmSGD, without momentum and with local_steps (schemes/swarm.h). All with any wire.
  // "atc": adapt-then-combine, this step's parameters are exchanged and mixed inside step(), block after block.
  // "ceca-2p": combine-then-adapt with a second vector beside the parameters (4 bytes per value), over rounds of its own:
  // one send and one receive a round, and the exact mean after ceil(log2 n) rounds for every n. The edges are directed: an exchange
  // that is lost moves the mean a little, and is counted in Statistics::directed_aborted. All wires, a rule of Starling's.
  // "choco": CHOCO-SGD, top-k with a memory of what was not sent: see one_in and gamma. Inside step(), as atc. With a symmetric
  // topology of one round (ring, torus, complete), wire fp32 and a rule of Starling's. Keeps 2 floats per value and neighbour.
  // "push-sum": SGP, stochastic gradient push, for directed topologies, also those that are no average for other schemes: shares of
  // the parameters and of a weight are pushed, and the parameters are the one divided by the other (schemes/push_sum.h). An
  // exchange that is lost moves nothing. See staleness. Wires fp32, bf16 and fp16, and a rule of Starling's.
  // "async-push-sum": the same beside training, asynchronous gradient push (gossip/gossip.h): at random times a worker pushes half
  // of what it has to one that takes of it in any round of the topology; step() waits for nobody. Wires fp32, bf16 and fp16.
  // "async-push-pull": with gradient tracking besides (schemes/push_pull.h): but for the noise of batches, workers come to what is
  // best for all with a constant learning rate, whatever their data and speeds. Sends twice as much, keeps 8 bytes for each value,
  // and leaves the tracked gradient in .grad, as all-reduce its mean; clip is of that one. A worker that dies leaves its last gradient
  // in what the others track, until they load a checkpoint. Wires fp32 and bf16; no loss_scaling, scale_gradients() and
  // skip_not_finite.
  std::string scheme = "cta";
  // Number format of parameters between workers. With bf16 and fp16 half the bytes cross the link and workers agree to
  // the last bit of that format; int8 and int4 send a quarter and an eighth, and agree the better the nearer they are
  // already (docs/wires.md). The sum of all parameters is kept whatever the format. Not used by all-reduce.
  Wire wire = Wire::fp32;
  // "a2cid2", "ad-psgd", "ad-psgd-bipartite", "swarm", "async-push-sum", "async-push-pull": averagings that a worker takes part in, in
  // the time of one gradient (with "swarm": of local_steps gradients). A push counts at both ends: 2 is one for each gradient.
  double rate = 1;
  // When these ask for them: "poisson", at random times, as the theory has it, or "fixed", at even ones.
  std::string clock = "poisson";
  // "a2cid2": in place of the paper's constants, which follow from the topology and the rate (gossip/a2cid2.h). From 0 to 1000;
  // with eta = 0 there is no momentum.
  std::optional<double> eta{}, alpha_tilde{};
  // Of what these draw: when, and with whom. The same seed need not give the same run: when a message comes decides, too.
  std::uint64_t seed = 0;
  // "swarm": steps of the local rule between two that others can see, from 1.
  int local_steps = 1;
  // "push-sum": how many steps old what is mixed in is: 0, SGP, pushes and waits inside step(), as atc; 1, overlap SGP, hides the
  // exchange behind the next iteration, as cta; s, from 2 to 1000, behind the next s iterations: it pushes after every s-th step only.
  // A checkpoint is gone on from to the bit where its step is a multiple of s; elsewhere the push under way begins anew.
  int staleness = 0;
  // random-k: in a round only one value in so many is sent, in the format of `wire`, and mixed; the same ones by all workers,
  // others in the next round, and each of them once in `one_in` periods of the topology (docs/wires.md). So many times fewer
  // bytes, and so many times less mixing. From 1, all values, to 1024. With cta, atc, choco and a hierarchy alone.
  // With choco it is top-k: of each block one value in so many is sent, with its index (8 bytes), those that have changed most
  // since they were sent.
  int one_in = 1;
  // choco: how far the workers go towards each other in a step, x += gamma Sum_j W_ij (x^_j - x^_i), from above 0 to 1. Too
  // much, and they go apart. 0 stands for 1 where one_in is 1, else 0.8 / sqrt(one_in).
  double gamma = 0;
  // "node": one gossips for a node of workers_per_node consecutive ranks, block by block: they average their gradients, each
  // keeps the state of its share of the blocks and exchanges these with the same place on the nodes that `topology` names.
  // With scheme "cta" and a rule of Starling's only; clip is of the node's mean gradient; NoSync as with all-reduce.
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

  // With asynchronous schemes, since the last parameter group was added: this worker's averagings on each edge. They count in
  // gradients of this worker, with "swarm" in stretches of local_steps.
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
  // answer. With "swarm" those in whole stretches.
  std::uint64_t gradients_of_all = 0;
  // The effective rate: averagings for each gradient. So many others have moved x, in the mean, between the moment at which a
  // gradient's x was taken and that at which it is applied.
  double rate = 0;
  // RMS of the edges' distances. Over all workers and edges, where each worker is as far from its neighbours as from others, that
  // is sqrt(2) of the consensus distance; on sparse graphs less. It costs nothing to know.
  double distance = 0;
};

// See Optimizer::state().
struct OptimizerState {
  Metadata metadata;
  std::map<std::string, at::Tensor> tensors;
};

class Optimizer : public torch::optim::Optimizer {
 public:
  // All parameters of the module that require a gradient, as one group, and the module's buffers (for Consensus). One
  // that is unfrozen later is added as a group of its own; one that is frozen later goes on being mixed.
  // Parameters must be float32, bfloat16 or float16 on the CPU or on CUDA devices, and dense in memory (contiguous or
  // channels_last, not a slice), and stay of their type and where they are; gradients are of the same. On CUDA devices
  // with schemes "cta", "atc", "all-reduce" (all on one) and the asynchronous ones, without a hierarchy; there the
  // rule's state and masters are on the device too, and step() puts its work into torch's current stream and does not
  // wait for it (cuda/cuda.h); with the asynchronous ones it waits for backward (GossipStream). A model may mix types.
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
  //   published.RANK.NAME, replica.RANK.NAME   choco: this worker's copy at that neighbour, and the neighbour's here
  //   apart.NAME     of ceca-2p: by how much the second vector is apart from the parameters
  //   weights        of push-sum and async-push-sum: the weight of each block
  //   x_tilde.NAME   of a2cid2
  //   clock          of asynchronous schemes: random numbers drawn so far, and gradients until this worker asks for an averaging
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
  // Without `values` nothing of the parameters' size is copied: m., v., b., master., published., replica. and x_tilde.
  // are of the device "meta", with their names, types and shapes alone.
  OptimizerState state(bool values = true) const;
  // Collective, between two steps: every worker takes a state of the same rule and parameters. What was in flight is sent
  // again. If any of them cannot take its own, all throw Error and none has changed anything.
  void set_state(const OptimizerState& state);
  // The same as a safetensors file (synced, but not written in one go: save_checkpoint() in checkpoint.h does that, for
  // all workers together). Returns the file's size and checksum. Throws Error.
  Digest save(const std::string& file) const;
  void load(const std::string& file);  // as set_state()
  // The place in the schedule alone, where the rest is saved elsewhere: of the first round that starts from the parameters
  // as they stand. restart() is collective; what was in flight is sent again. With a2cid2 x~ begins as the parameters, with
  // ceca-2p the second vector, with push-sum the weights as 1. Without a position this worker could not load the rest: all
  // throw Error, and go on as they were.
  std::uint64_t position() const;
  void restart(std::optional<std::uint64_t> position);
  // Torch's archives are refused: UsageError.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  const World& world() const;
  Statistics statistics() const;
  std::int64_t parameter_count() const;
  // How much each value of a parameter counts in Consensus beside the other workers': a double for each, with push-sum its weight w,
  // else 1.
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
  std::unique_ptr<Scheme> make_scheme();
  std::unique_ptr<Scheme> make_gossip(std::function<void()> adapt);
  void go_on(std::uint64_t position);
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
