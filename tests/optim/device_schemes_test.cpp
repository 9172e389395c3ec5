// Every scheme in rounds has the bits of the CPU with blocks on a GPU: with each wire, with narrow
// parameters, few values and local steps, in nodes, and around another optimizer. Each run clips,
// adds a parameter group, and goes on from a state that it has saved. The schemes in pairs are in
// device_gossip_test.cpp.
#include <iterator>

#include <ATen/record_function.h>
#include <fmt/format.h>

#include "starling/optim/clipping.h"
#include "starling/optim/outer.h"
#include "starling/transport/transport.h"
#include "tests/optim/every_scheme.h"
#include "tests/optim/other_device.h"

namespace starling {
namespace {

// While it lives, torch's operations of this thread come after all that the mock GPU's default
// stream was given, as on a GPU. Other reads of its memory see what is there.
class TorchInOrder {
 public:
  explicit TorchInOrder(void (*drain)()) {
    drain_ = drain;
    const auto before = [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
      drain_.load()();
      return nullptr;
    };
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback(before).scopes({at::RecordScope::FUNCTION}));
  }
  ~TorchInOrder() { at::removeCallback(handle_); }
  TorchInOrder(const TorchInOrder&) = delete;

 private:
  static inline std::atomic<void (*)()> drain_ = nullptr;  // the same for all threads
  at::CallbackHandle handle_ = 0;
};

// A state of a scheme, and of what a local step changes.
class Saved final : public StateVisitor {
 public:
  Saved(std::vector<Block>& blocks, std::vector<Tensor>& all, Scheme& scheme, std::uint64_t position)
      : blocks_(blocks), scheme_(scheme), position_(position) {
    settle(blocks);
    with_masters(blocks);
    for (const Tensor& p : all) keep(p);
    for (Block& block : blocks) {
      for (const Tensor& state : block.states) keep(state);
      for (Segment& s : block.segments) {
        if (s.master.defined()) keep(s.master);
        steps_.push_back(s.steps);
      }
      grids_.push_back(block.grid);
    }
    scheme_.state(*this);
    saves_ = false;
  }

  void load(Exchange& exchange) {
    settle(blocks_);
    std::size_t s = 0, b = 0;
    for (auto& [tensor, values] : kept_) tensor.copy_(values);
    for (Block& block : blocks_) {
      for (Segment& segment : block.segments) segment.steps = steps_[s++];
      block.grid = grids_[b++];
    }
    exchange.restart(position_);
    scheme_.restart();
    scheme_.state(*this);
    scheme_.begin();
  }

  void values(const std::string&, Fresh, const Access& access) override {
    for (Block& block : blocks_) {
      access(block, [&](const Tensor& values) {
        saves_ ? values_.push_back(values.clone()) : void(values.copy_(values_[next_++]));
      });
    }
  }
  void numbers(const std::string& name, const Numbers& numbers) override {
    if (saves_) {
      numbers_.push_back(numbers.now);
      return;
    }
    const std::vector<double>& saved = numbers_[next_numbers_++];
    EXPECT_EQ(numbers.refusal(saved), "") << name;
    numbers.set(saved);
  }

 private:
  void keep(const Tensor& tensor) { kept_.emplace_back(tensor, tensor.detach().clone()); }

  std::vector<Block>& blocks_;
  Scheme& scheme_;
  const std::uint64_t position_;
  bool saves_ = true;
  std::vector<std::pair<Tensor, Tensor>> kept_;  // a tensor and its values
  std::vector<std::int64_t> steps_;
  std::vector<Grid> grids_;
  std::vector<Tensor> values_;
  std::vector<std::vector<double>> numbers_;
  std::size_t next_ = 0, next_numbers_ = 0;
};

struct SchemeRun {
  std::string name{};
  Options options;
  at::ScalarType type = at::kFloat;
  bool around = false;
};

constexpr int kMany = 4, kNode = 2;     // workers
constexpr std::size_t kParameters = 6;  // of each

// The values of a parameter, from its bytes.
Tensor values_in(const std::vector<std::byte>& bytes, at::ScalarType type) {
  const auto n = static_cast<std::int64_t>(bytes.size() / c10::elementSize(type));
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {n}, type).to(at::kFloat);
}

// Those that a scheme of the table takes.
std::vector<SchemeRun> runs_of(const SchemeInfo& info) {
  const SchemeTraits& traits = info.traits;
  if (traits.path == Path::pairs || traits.path == Path::gradients) return {};
  std::string name(info.name);
  std::ranges::replace(name, '-', '_');
  const Options plain = options_of(info);
  std::vector<SchemeRun> runs;
  const auto add = [&](const std::string& what, SchemeRun run) {
    run.name = name + "_" + what;
    check_options(run.options, kMany, 1, run.around);
    runs.push_back(std::move(run));
  };
  for (const std::string_view wire : wires_of(info)) {
    Options options = plain;
    options.wire = wire_named(std::string(wire));
    add(std::string(wire), {.options = options});
  }
  add("bf16_parameters", {.options = plain, .type = at::kBFloat16});
  add("fp16_parameters", {.options = plain, .type = at::kHalf});
  if (traits.all_values.empty()) {
    Options options = plain;
    options.one_in = 4;
    add("few_values", {.options = options});
    add("few_values_of_bf16_parameters", {.options = options, .type = at::kBFloat16});
  }
  if (traits.local_steps) {
    Options options = plain;
    options.every = 2;
    add("local_steps", {.options = options, .type = at::kBFloat16});
  }
  if (traits.own_rule.empty()) add("around", {.options = plain, .around = true});
  if (info.make_in_nodes != nullptr) {
    Options options = plain;
    options.hierarchy = "node", options.workers_per_node = kNode;
    add("in_nodes", {.options = options});
  }
  if (info.name == "choco") {
    Options options = plain;
    options.one_in = 4;
    options.scheme.options.emplace_back("trigger", 100.0);
    add("trigger", {.options = options});
  }
  if (info.name == "push-sum") {
    Options options = plain;
    options.scheme.options.emplace_back("staleness", std::int64_t{2});
    add("staleness", {.options = options});
  }
  return runs;
}

std::vector<SchemeRun> all_runs() {
  std::vector<SchemeRun> all;
  for (const SchemeInfo* const info : schemes()) std::ranges::move(runs_of(*info), std::back_inserter(all));
  return all;
}

class SchemesOnAnotherDevice : public OtherDevice {
 protected:
  // One worker's training. The scheme sees what an Optimizer gives it.
  class Worker {
   public:
    Worker(SchemesOnAnotherDevice& test, const SchemeRun& run, int me, World& world, Where where)
        : test_(test),
          run_(run),
          me_(me),
          world_(world),
          gpu_(where == Where::other ? test.device() : nullptr),
          place_(where == Where::cuda ? at::kCUDA : at::kCPU, where == Where::cuda ? 0 : -1),
          // On a real GPU, sums of squares have other last bits.
          clipping_(where == Where::cuda ? 0 : 20, /*skip=*/false, std::nullopt),
          local_(run.around ? LocalStep(
                                  blocks_, [this] { other_step(); }, clipping_)
                            : LocalStep(
                                  blocks_, [this](int) -> const Rule& { return rule_; }, clipping_)),
          schedule_(schedule_of(run.options, kMany, 1)),
          scheme_(make_scheme()) {}
    ~Worker() {
      for (const Block& block : blocks_) {
        if (block.on_device) block.on_device->end();
      }
    }
    Worker(const Worker&) = delete;

    After train() {
      add_groups({{{3}, {50, 30}}, {{17}, {40, 30}}});
      steps(2 * run_.options.every);
      add_groups({{{40, 40}, {11}}});
      steps(2 * run_.options.every);
      settle(blocks_);
      Saved saved(blocks_, all_, *scheme_, exchange_->position(scheme_->sends_ahead()));
      steps(2 * run_.options.every);
      saved.load(*exchange_);
      steps(2 * run_.options.every);
      meet();
      After after = bytes_after(all_, blocks_);
      BytesOfState state(blocks_, after);
      state.with_numbers = true;
      scheme_->state(state);
      return after;
    }

   private:
    using Shapes = std::vector<std::vector<std::int64_t>>;

    bool in_nodes() const { return run_.options.hierarchy == "node"; }
    bool owns(std::size_t block) const { return !in_nodes() || node_.owner[block] == node_.place; }

    std::unique_ptr<Scheme> make_scheme() {
      const SchemeInfo& info = scheme_of(run_.options);
      if (in_nodes()) node_ = {.size = kNode, .place = me_ % kNode};
      const SchemeParts parts{blocks_, local_, world_, run_.options, &node_};
      return in_nodes() ? info.make_in_nodes(parts) : info.make(parts);
    }

    // No worker leaves while others wait for it.
    void meet() {
      for (int k = 0; k < 2; ++k) {
        settle(blocks_);
        test_.drain();
        with_masters(blocks_);
      }
      settle(blocks_);
      test_.drain();
      std::int64_t nothing = 0;
      exchange_->maximum({&nothing, 1});
    }

    // Workers start equal.
    void add_groups(const std::vector<Shapes>& groups) {
      if (exchange_) meet();
      scheme_->detach();
      exchange_.reset();
      const SchemeTraits& traits = scheme_of(run_.options).traits;
      for (const Shapes& shapes : groups) {
        const std::vector<Tensor> fresh = some_parameters(shapes, 0, run_.type, place_);
        all_.insert(all_.end(), fresh.begin(), fresh.end());
        groups_.emplace_back(fresh);
        test_.add_blocks(blocks_, groups_, {.rule = rule_, .wire = run_.options.wire},
                         traits.wire_values != nullptr, gpu_);
      }
      if (in_nodes()) share_among_node();
      connect(traits);
      scheme_->attach({.schedule = schedule_,
                       .of_members = schedule_,
                       .members = {0, 1, 2, 3},
                       .exchange = exchange_.get(),
                       .inside_node = inside_node_.get()});
      scheme_->begin();
    }

    void connect(const SchemeTraits& traits) {
      std::vector<std::size_t> sizes;
      for (std::size_t b = 0; b < blocks_.size(); ++b) {
        Block& block = blocks_[b];
        block.grid.remember(schedule_.rounds.size() * static_cast<std::size_t>(run_.options.one_in));
        if (!owns(b)) continue;
        sizes.push_back(traits.wire_values != nullptr ? traits.wire_values(block, schedule_, run_.options)
                                                      : static_cast<std::size_t>(block.length));
      }
      ExchangeOptions options{.log = world_.log, .contents = traits.contents};
      options.contents.wire = run_.options.wire;
      if (traits.wire_values == nullptr) options.contents.one_in = run_.options.one_in;
      const std::string channel = fmt::format("device-{}", groups_.size());
      exchange_ = std::make_unique<Exchange>(world_.make_transport(world_, channel), schedule_, sizes,
                                             std::move(options));
      exchange_->meet();
      inside_node_.reset();
      if (!in_nodes()) return;
      World inside = world_;
      inside.rank = node_.place, inside.size = node_.size;
      inside_node_ =
          make_collectives(inside, fmt::format("{}-node-{}", channel, me_ / kNode), me_ - node_.place);
    }

    void share_among_node() {
      node_.owner.clear();
      int mine = 0;
      for (Block& block : blocks_) {
        node_.owner.push_back(static_cast<int>(node_.owner.size()) % kNode);
        if (node_.owner.back() == node_.place) block.index = mine++;
      }
    }

    void steps(int count) {
      for (int t = 0; t < count; ++t, ++step_) {
        give_gradients(all_, me_, step_);
        settle(blocks_);
        (step_ + 1) % run_.options.every == 0 ? scheme_->step() : local_.all();
      }
    }

    void other_step() {
      for (Tensor& p : all_) {
        if (p.grad().defined()) p.sub_(p.grad(), 0.1);
      }
    }

    SchemesOnAnotherDevice& test_;
    const SchemeRun& run_;
    const int me_;
    World& world_;
    const std::shared_ptr<CudaDevice> gpu_;
    const at::Device place_;
    const Rule rule_ = SGD{.lr = 0.05, .momentum = 0.9};
    std::vector<Tensor> all_;
    Groups groups_;
    std::vector<Block> blocks_;
    LocalNode node_;
    Clipping clipping_;
    LocalStep local_;
    const Schedule schedule_;
    std::unique_ptr<Exchange> exchange_;
    std::unique_ptr<Collectives> inside_node_;
    std::unique_ptr<Scheme> scheme_;
    int step_ = 0;
  };

  // By worker.
  std::vector<After> ends(const SchemeRun& run, Where where) {
    return results_of(kMany, [&](int i, World& world) {
      const TorchInOrder in_order(drainer());
      const c10::AutoGradMode no_gradient(false);
      return Worker(*this, run, i, world, where).train();
    });
  }

  void expect_the_same(const SchemeRun& run) {
    SCOPED_TRACE(run.name);
    const std::vector<After> there = ends(run, Where::other), here = ends(run, Where::here);
    for (std::size_t i = 0; i < here.size(); ++i) {
      ASSERT_EQ(there[i].size(), here[i].size());
      for (std::size_t k = 0; k < here[i].size(); ++k)
        EXPECT_TRUE(there[i][k] == here[i][k]) << "worker " << i << ", tensor " << k;
    }
    EXPECT_TRUE(scheme_of(run.options).traits.equal || here[0] != here[3]);
  }
};

TEST_F(SchemesOnAnotherDevice, TorchsOperationsComeAfterEarlierWork) {
  const std::shared_ptr<CudaDevice> gpu = device();
  const float from = 7;
  const Tensor x = at::zeros({1});
  gpu->gpu().upload(x.mutable_data_ptr(), &from, sizeof from, gpu->current());
  EXPECT_EQ(*x.const_data_ptr<float>(), 0);
  const TorchInOrder in_order(drainer());
  EXPECT_EQ((x + 1).const_data_ptr<float>()[0], 8);
}

// One run of each scheme. The rest is a long test.
TEST_F(SchemesOnAnotherDevice, TrainAsOnTheProcessorToTheBit) {
  for (const SchemeInfo* const info : schemes()) {
    const std::vector<SchemeRun> runs = runs_of(*info);
    EXPECT_EQ(runs.empty(), info->traits.path == Path::pairs || info->traits.path == Path::gradients);
    if (!runs.empty()) expect_the_same(runs.front());
  }
}

TEST_F(SchemesOnAnotherDevice, WorkersTrainAsOnTheProcessorToTheBit) {
  for (const SchemeRun& run : all_runs()) expect_the_same(run);
}

// All workers share the card. On a scheme's vectors torch computes, which may round otherwise.
TEST_F(SchemesOnAnotherDevice, WorkersTrainOnAGpuAsOnTheProcessor) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  TearDown();  // the real compiler
  for (const SchemeRun& run : all_runs()) {
    if (run.options.wire != Wire::fp32) continue;  // scripts/gpu/bits.py
    SCOPED_TRACE(run.name);
    const std::vector<After> there = ends(run, Where::cuda), here = ends(run, Where::here);
    for (std::size_t i = 0; i < here.size(); ++i) {
      for (std::size_t k = 0; k < kParameters; ++k)
        EXPECT_TRUE(
            at::allclose(values_in(there[i][k], run.type), values_in(here[i][k], run.type), 1e-2, 1e-4))
            << "worker " << i << ", parameter " << k;
    }
  }
}

}  // namespace
}  // namespace starling
