// The optimizer that trains without a global all-reduce.
//
//   starling::World world = starling::World::from_environment();
//   starling::Optimizer optimizer(*model, starling::AccumAdamW{.lr = 1e-3}, {}, world);
//   for (auto& batch : loader) {
//     optimizer.zero_grad();
//     loss(model, batch).backward();
//     optimizer.step();
//   }
//   { starling::Consensus average(optimizer); evaluate(model); }   // here it is the average model
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "starling/checkpoint/safetensors.h"
#include "starling/optim/consensus.h"
#include "starling/optim/optimizer_options.h"
#include "starling/optim/optimizer_state.h"
#include "starling/optim/rules.h"
#include "starling/optim/statistics.h"
#include "starling/world/world.h"

namespace torch::nn {
class Module;
}

namespace starling {

class Scheme;
struct Epoch;
struct ExchangeStatistics;
struct GivenState;
struct Place;

class Optimizer : public torch::optim::Optimizer {
 public:
  // Takes the module's parameters that require a gradient (parameter_groups.h), and its buffers
  // (for Consensus). One unfrozen later becomes its own group; one frozen later is still mixed.
  //
  // Parameters must be float32, bfloat16 or float16 (types may be mixed), on the CPU or CUDA
  // devices, and dense (contiguous or channels_last, no slice), each in memory of its own. Their
  // type, sizes, memory order and place must not change; gradients have the same. CUDA needs a
  // scheme that supports it (`starling schemes NAME`; with Path::gradients one device) and no
  // hierarchy. Rule state and masters are then on the device. step() puts its work into torch's
  // current stream and does not wait (cuda/cuda.h); a scheme in pairs waits for backward().
  //
  // A bfloat16 or float16 parameter is its fp32 master rounded to nearest even. Rule, mixing, wire
  // and averages use the master (not with hierarchy "node"), which takes changed values over.
  //
  // Collective: waits for the constructors of all workers, at most world.timeouts.meet. Copies rank
  // 0's parameters (frozen ones too) and buffers to every worker, and proves it with a checksum.
  // Throws UsageError if options, parameters or buffers make no sense or differ between workers
  // (with both values), Error if one does not come.
  Optimizer(torch::nn::Module& module, Rule rule, Options options, const World& world);
  // From groups, each with a rule_options(...) of the same rule, or none (then `rule`); a parameter
  // only once. `buffers` are averaged, `frozen` parameters spread at the start, as a module's are.
  Optimizer(torch::nn::Module& module, const std::vector<torch::optim::OptimizerParamGroup>& groups,
            Rule rule, Options options, const World& world);
  Optimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, Rule rule, Options options,
            const World& world, std::vector<at::Tensor> buffers = {}, std::vector<at::Tensor> frozen = {});
  Optimizer(std::vector<at::Tensor> parameters, Rule rule, Options options, const World& world);
  // Around another optimizer, which must outlive this one. Its step() is the local rule. Set
  // learning rates, add parameter groups and clip gradients there. Parameters must be float32,
  // since it knows no masters (UsageError). A module's buffers are averaged. save() and load()
  // support torch's SGD, Adam, AdamW, Adagrad and RMSprop, else throw UsageError.
  Optimizer(torch::optim::Optimizer& inner, Options options, const World& world,
            std::vector<at::Tensor> buffers = {}, std::vector<at::Tensor> frozen = {});
  Optimizer(torch::nn::Module& module, torch::optim::Optimizer& inner, Options options, const World& world);
  ~Optimizer() override;  // tells neighbours not to wait for this worker; never blocks for long

  // With World::rejoin, a worker that is started while the others train joins them in its
  // constructor: it takes the state of one of them, except the scheme's and torch's random numbers,
  // and that one's place in the run. Tensors of add_to_state() take their values there. All schemes
  // begin anew, as after begin_again(). The constructor then waits up to timeouts.meet. It throws
  // UsageError for a scheme in Path::gradients, a hierarchy, an optimizer whose state Starling
  // cannot save, other options or parameters than the members', or if no member is left.
  //
  // Calls of step() in this run, before this object's life too: use it as the loop's count, and to
  // choose batches.
  std::uint64_t steps() const;
  // Whether the last step() made no step, but joined the run again, at the others' place in it:
  // this worker was away for too long, or its parameters were not finite. The others have done what
  // follows a step, such as an average: go on with the next one.
  bool joined() const;

  // Hides torch's own, which drops a group's rule from 2.15 on: call it on this class. See step().
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // One step: for each block, finishes the exchange, mixes and updates in one pass, and starts the
  // next exchange. Waits for neighbours up to Options::max_wait. Parameters without a gradient are
  // only mixed. A closure is called first, with gradients enabled; its loss is returned.
  //
  // After add_param_group(), which all workers must call before the same step, step() is
  // collective: every worker gets rank 0's new parameters. Existing groups accept none.
  //
  // Throws UsageError within a Consensus, whose end would undo it; so do load(), begin_again() and
  // the like. Also if a parameter or a gradient is not of its type, sizes or place: before anything
  // is sent, so a later step goes on.
  //
  // Parameters may change between steps, with gradients disabled, but not past autograd (.data in
  // Python, raw pointers): if torch's version misses it, neighbours keep part of the old values.
  at::Tensor step(LossClosure closure = nullptr) override;
  // For losses scaled by other code (torch.amp.GradScaler): the next step(), even one that throws,
  // multiplies gradients by `scale`, before clipping. None: it only mixes, and counts as skipped.
  // Throws UsageError with Options::loss_scaling, or without a rule of Starling's.
  void scale_gradients(std::optional<float> scale);
  // The loss's factor for all backward passes up to the next step(): Options::loss_scaling.
  double loss_scale() const;

  // Whether this worker's parameters may go where they stay longer than in an exchange: into an
  // average, a moving average, a checkpoint, another worker's state. With Options::jump_guard not
  // while they are far from those of most neighbours. `waits`: for the blocks in flight, as the
  // next step() would; otherwise they say nothing yet.
  bool counts(bool waits = false) const;

  // Replaces the buffers that Consensus averages by others of the same number, types and sizes, if
  // the module has put others in their place. Throws UsageError if one cannot be averaged.
  void set_buffers(std::vector<at::Tensor> buffers);
  // This worker ends because of an error: the destructor tells the others, which warn of it in one
  // line.
  void fails();

  // The exact average of `values` over all live workers, over the edges. Collective, with equal
  // sizes; blocks until all have called it. Returns how many workers took part: 0 if the others
  // have ended it without this worker, which was away and keeps its values.
  int average(std::span<float> values);
  // As average(), but the maximum of each value.
  int maximum(std::span<std::int64_t> values);
  // Collective; precedes an operation that pauses asynchronous gossip. Gossip goes on until all are
  // here, so that no slow worker is left alone. No effect with other schemes.
  void wait_for_all();
  // Collective, between two steps, after all workers have replaced their parameters: by an earlier
  // copy of the model, or by an average from elsewhere. Drops what is in flight and the scheme's
  // state, then sends the present parameters. So the next step starts from these alone.
  // Consensus::keep() and set_state() do the same. Changes by one worker (clamped weights, averaged
  // weights for an evaluation) need no call: mixing adds differences of what was sent, and so keeps
  // the sum of all parameters as it is.
  void begin_again();
  // This worker makes no gradient until its next step(): others push no mass or tracked gradients
  // to it (async-push-sum, async-push-pull), since it cannot pass them on. Part of wait_for_all().
  void stand_by();
  // RMS distance of parameters to their mean: sqrt(1/n Sum_i |x_i - mean|^2 / d). Collective.
  double consensus_distance();

  // All that this worker needs to resume as if it had not stopped (checkpoint.h lists the tensors).
  // Call it between two steps. The model's tensors are the parameters and buffers themselves; the
  // others are copies on the CPU. Asynchronous schemes first finish averagings in flight (at most a
  // second), then gossip stands still until the next step(). So if all workers have their states
  // before any steps again, the states are of one moment. Without `values`, copies of the
  // parameters' size are on device "meta": name, type and shape only.
  OptimizerState state(bool values = true) const;
  // Collective, between two steps: every worker takes a state of the same rule and parameters.
  // Blocks in flight are sent again. If one worker cannot, all throw Error and none has changed.
  void set_state(const OptimizerState& state);
  // The same as a safetensors file: synced, but not atomic (save_checkpoint() in checkpoint.h is,
  // for all workers). Returns the file's size and checksum. Throws Error.
  Digest save(const std::string& file) const;
  void load(const std::string& file);  // as set_state()
  // Adds tensors of the caller to what state() and save() have, and set_state() and load() fill.
  // Throws UsageError if a tensor of the state has such a name.
  void add_to_state(std::vector<std::pair<std::string, at::Tensor>> tensors);
  // Only the place in the schedule (the first round from the present parameters) and the steps of
  // Options::every and mean_every, if the rest is saved elsewhere. restart() is collective: blocks
  // in flight are sent again, and the scheme's state begins fresh. No position: this worker could
  // not load the rest, so all throw Error and continue as they were.
  std::uint64_t position() const;
  void restart(std::optional<std::uint64_t> position);
  // torch's archives are refused: UsageError.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  const World& world() const;
  Statistics statistics() const;
  std::int64_t parameter_count() const;
  // A double for each value of a parameter: its weight in Consensus, 1 without a scheme's weights.
  at::Tensor weights(const at::Tensor& parameter) const;
  // Parameters in each block, in the order of updates and exchanges.
  std::vector<std::int64_t> block_sizes() const;

 private:
  friend class Consensus;
  friend class NoSync;
  friend class Operation;
  struct Engine;  // engine.h
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
  Optimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, Rule rule, Options options,
            const World& world, std::vector<at::Tensor> buffers, std::vector<at::Tensor> frozen,
            NamedTensors model);
  Optimizer(torch::optim::Optimizer& inner, Options options, const World& world,
            std::vector<at::Tensor> buffers, std::vector<at::Tensor> frozen, NamedTensors model);
  void begin(Options options, const World& world, std::vector<at::Tensor> buffers);
  void take_new_groups();
  void keep_states();
  // connection.cpp
  void connect(std::size_t first_group);
  void open(const Epoch& epoch, const World& world);
  void attach_scheme();
  void make_scheme();
  void leave_epoch();
  void give_state(const std::map<int, std::int64_t>& newcomers);
  bool keep_membership();
  bool is_spoiled() const;
  void join_again();
  std::map<int, Place> meet(const Epoch& epoch, const std::optional<Place>& mine);
  void renew(bool between_steps);
  void join();
  void adopt(OptimizerState given);
  OptimizerState state(bool values, bool with_scheme) const;
  void make_step();
  void renew_outer();
  void go_on(std::uint64_t position, const std::function<void(Scheme&)>& change);
  void take_state(const std::string& what, const std::function<GivenState()>& give);
  ExchangeStatistics counted() const;  // since construction
  std::unique_ptr<Engine> engine_;
};

// Gradient accumulation with all-reduce (no effect with other schemes, which send in step()). While
// it lives, passes add to the worker's own .grad and send nothing. The first pass after it, or else
// step(), averages the sum, to the same result as without it. All workers must run equally many
// passes outside it between two steps.
class NoSync {
 public:
  explicit NoSync(Optimizer& optimizer);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Optimizer& optimizer_;
};

// Options of one parameter group: torch::optim::OptimizerParamGroup(parameters,
// rule_options(AdamW{.lr = 1e-4})). get_lr / set_lr work, so torch's schedulers do.
std::unique_ptr<torch::optim::OptimizerOptions> rule_options(Rule rule);
Rule& rule_of(torch::optim::OptimizerParamGroup& group);

}  // namespace starling
