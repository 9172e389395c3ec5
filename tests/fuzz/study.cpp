// The file of `starling study`, beside a recipe with one key of each kind.
#include "starling/train/study.h"

#include <set>

#include "starling/core/config.h"
#include "tests/core/every_kind.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

class SmallRecipe final : public StudyRecipe {
 public:
  void read(const std::string&) override {}
  void set(const Study::Keys& keys, const std::string& from) override { values_ = with_all(keys, from); }
  void check(const std::string& key, const std::string& value, const std::string& from) const override {
    with_all({{key, value}}, from);
  }
  Study::Keys with(const Study::Keys& keys, const std::string& from) const override {
    EveryKind values = with_all(keys, from);
    return {{"all", declare(values).print()}};
  }
  std::string task() const override { return "pictures"; }
  std::int64_t seed() const override { return 1; }

 private:
  EveryKind with_all(const Study::Keys& keys, const std::string& from) const {
    EveryKind values = values_;
    Config config = declare(values);
    for (const auto& [key, value] : keys) {
      if (key != "run.seed") config.set(key, value, from);
    }
    return values;
  }
  EveryKind values_;
};

}  // namespace

void read(std::string_view bytes) {
  accepted([&] {
    SmallRecipe recipe;
    const Study study = parse_study(std::string(bytes), "study.toml", recipe);
    check(!study.runs.empty() && study.runs.size() <= Study::kMostRuns, "too many runs or none");
    check(study.runs.size() == study.arms.size() * study.seeds.size(), "a run is missing");
    for (const Study::Arm& arm : study.arms) {
      check(arm.values.size() == study.axes.size(), "an arm of other axes");
      check(!arm.baseline || *arm.baseline < study.arms.size(), "a baseline that is not there");
      check(!study.name_of(arm).empty(), "an arm without a name");
    }
    std::set<std::string> names;
    for (const Study::Run& run : study.runs) {
      check(run.arm < study.arms.size() && run.workers >= 1, "a run of nothing");
      check(run.name.find('/') == run.name.npos && names.insert(run.name).second, "a folder of two runs");
    }
  });
}

}  // namespace starling::fuzz
