#include "starling/train/auto_topology.h"

#include <torch/nn/modules/linear.h>

#include "starling/optim/schemes/table.h"
#include "starling/plan/profile.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(SchedulesFor, AreThoseThatTheSchemeAccepts) {
  EXPECT_THAT(schedules_for({}, 8, 1), ElementsAre("base-2", "alternating-exp-ring", "ring", "complete"));
  EXPECT_THAT(schedules_for({.wire = Wire::int8}, 8, 1),
              ElementsAre("base-2", "alternating-exp-ring", "ring"));
  EXPECT_THAT(schedules_for({.scheme = "exact-diffusion"}, 8, 1), ElementsAre("ring", "complete"));
  EXPECT_THAT(schedules_for({.scheme = "d2"}, 4, 1), ElementsAre("complete"));  // of its eigenvalues
  EXPECT_THAT(refusal<UsageError>([] { schedules_for({.scheme = "choco", .wire = Wire::int8}, 8, 1); }),
              HasSubstr("scheme \"choco\" needs wire fp32, not \"int8\""));
}

// Notes which batches are drawn.
class NotingTask final : public Task {
 public:
  NotingTask(const Drawer& who, std::vector<std::int64_t>& drawn) : deal_(64, 1, who), drawn_(drawn) {}
  torch::nn::Module& model() override { return *model_; }
  const Deal& deal() const override { return deal_; }
  Batch batch(std::int64_t number) override {
    drawn_.push_back(number);
    return {at::ones({1, 4})};
  }
  at::Tensor loss(const Batch& batch) override { return model_->forward(batch.front()).square().mean(); }
  std::int64_t test_examples() const override { return 0; }
  Tally test(std::int64_t /*first*/, std::int64_t /*last*/) override { return {}; }
  Score score(const Tally& /*whole*/) const override { return {}; }

 private:
  const Deal deal_;
  std::vector<std::int64_t>& drawn_;
  torch::nn::Linear model_{4, 4};
};

TEST(ChooseTopology, MeasuresBatchesThatEarlierWorkersHaveNotDrawn) {
  const Folder folder;
  Recipe recipe;
  recipe.mixing.topology = "auto";
  recipe.mixing.profile = folder / "network.json";
  Profile network;
  network.hosts = {{.name = "a", .workers = {0, 1}}};
  network.inside_latency = 1e-6;
  network.inside_rate = 1e9;
  spill(recipe.mixing.profile, print_profile(network));
  struct Case {
    std::vector<Drawn> before;
    std::int64_t first;
  };
  const std::vector<Drawn> three{{.batches = {5, 5, 5}, .end = 5}};
  for (const auto& [before, first] : {Case{{}, 0}, Case{three, 5}}) {
    const auto all = results_of(2, [&, &before = before](int rank, World& world) {
      std::vector<std::int64_t> drawn;
      Learner learner(recipe, [&](const Drawer& who) { return std::make_unique<NotingTask>(who, drawn); },
                      {.rank = rank, .workers = 2, .before = before});
      choose_topology(recipe, world, learner);
      return drawn;
    });
    std::vector<std::int64_t> wanted(kMeasuredSteps);
    std::iota(wanted.begin(), wanted.end(), first);
    EXPECT_THAT(all, testing::Each(wanted));
  }
}

}  // namespace
}  // namespace starling
