#include "starling/train/study.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>

#include "starling/core/random.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::ElementsAre;

class StudyFile : public testing::Test {
 protected:
  StudyFile() { spill(folder_ / "recipe.toml", "[run]\nsteps = 3\n[optimizer]\nlr = 0.5\n"); }
  Study parse(const std::string& text) const { return parse_study(text, folder_ / "study.toml"); }
  // Without the folder.
  std::string error_of(const std::string& text) const {
    std::string said = refusal<UsageError>([&] { parse(text); });
    for (std::size_t at = said.find(folder_.path); at != std::string::npos; at = said.find(folder_.path))
      said.erase(at, folder_.path.size() + 1);
    return said;
  }
  const Folder folder_;
};

const std::string kHead = "recipe = 'recipe.toml'\nworkers = 4\n";

// The value that a run gives to a key, or "".
std::string key_of(const Study::Run& run, const std::string& path) {
  for (const auto& [key, value] : run.keys) {
    if (key == path) return value;
  }
  return "";
}

TEST_F(StudyFile, TheGridIsEveryCombination) {
  const Study study =
      parse(kHead +
            "[set]\ntrain.batch = 8\n[grid]\nrun.seed = [5, 7]\ndata.split = ['iid', 'dirichlet:0.1']\n"
            "mixing.scheme = ['cta', 'atc', 'd2']\n");
  EXPECT_EQ(study.arms.size(), 6U);
  ASSERT_EQ(study.runs.size(), 12U);
  EXPECT_THAT(study.seeds, ElementsAre(5, 7));
  EXPECT_EQ(study.out, "out/study");
  EXPECT_EQ(study.task, "fashion-mnist");
  std::set<std::string> names;
  for (const Study::Run& run : study.runs) {
    names.insert(run.name);
    EXPECT_EQ(run.workers, 4);
    EXPECT_EQ(key_of(run, "train.batch"), "8");
    EXPECT_EQ(key_of(run, "run.seed"), std::to_string(run.seed));
    EXPECT_EQ(key_of(run, "data.split"), study.arms[run.arm].values[0]);
    EXPECT_EQ(key_of(run, "mixing.scheme"), study.arms[run.arm].values[1]);
    EXPECT_NE(run.settings.find("\nrun.steps = 3\n"), std::string::npos);
    EXPECT_NE(run.settings.find("\ntrain.batch = 8\n"), std::string::npos);
  }
  EXPECT_EQ(names.size(), 12U);
  EXPECT_TRUE(names.contains("split=dirichlet:0.1,scheme=d2,seed=7"));
  EXPECT_EQ(study.name_of(study.arms[1]), "split iid, scheme atc");
  for (const Study::Arm& arm : study.arms) EXPECT_EQ(arm.baseline, std::nullopt);
}

TEST_F(StudyFile, ArmsAreComparedWithTheBaselinesValues) {
  const Study study = parse(kHead +
                            "[grid]\ndata.split = ['iid', 'by-class']\nmixing.scheme = ['atc', 'cta', 'd2']\n"
                            "[baseline]\nmixing.scheme = 'cta'\n");
  std::vector<std::optional<std::size_t>> baselines;
  std::vector<std::size_t> panels;
  for (const Study::Arm& arm : study.arms) {
    baselines.push_back(arm.baseline);
    panels.push_back(arm.panel);
  }
  EXPECT_THAT(baselines, ElementsAre(1, std::nullopt, 1, 4, std::nullopt, 4));
  EXPECT_THAT(panels, ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST_F(StudyFile, AnAblationIsComparedWithTheWhole) {
  const Study study = parse(kHead +
                            "[grid]\nmixing.scheme = ['cta', 'atc']\n[baseline]\nmixing.scheme = 'cta'\n"
                            "[ablation.'no warm-up']\nschedule.warmup = 0.0\n"
                            "[ablation.'less, and slower']\nmixing.topology = 'ring'\noptimizer.lr = 0.1\n");
  ASSERT_EQ(study.arms.size(), 6U);
  std::vector<std::optional<std::size_t>> baselines;
  for (const Study::Arm& arm : study.arms) baselines.push_back(arm.baseline);
  EXPECT_THAT(baselines, ElementsAre(std::nullopt, 0, 0, 0, 3, 3));
  EXPECT_THAT(study.axes.back().values, ElementsAre("none", "no warm-up", "less, and slower"));
  EXPECT_EQ(key_of(study.runs[5], "optimizer.lr"), "0.1");
  EXPECT_EQ(key_of(study.runs[5], "mixing.topology"), "ring");
  EXPECT_EQ(key_of(study.runs[4], "optimizer.lr"), "");
  // A space cannot be in a name, so a checksum tells it from others.
  EXPECT_THAT(study.runs[1].name, testing::MatchesRegex("scheme=cta,ablation=no-warm-up,seed=1-[0-9a-f]{8}"));
}

TEST_F(StudyFile, AValueMayBeSeveralKeysAndWorkersAnAxis) {
  const Study study = parse(
      "recipe = 'recipe.toml'\ntitle = 'Two'\nrun = 'train'\nout = 'there'\n[grid]\nworkers = [2, 3]\n"
      "method = [{ name = 'slow', optimizer.lr = 0.25 },\n  { name = 'fast', optimizer.lr = 1.0, "
      "mixing.scheme = 'atc' }]\n"
      "optimizer.betas = [[0.9, 0.99]]\n");
  ASSERT_EQ(study.runs.size(), 4U);
  EXPECT_FALSE(study.simulated);
  EXPECT_EQ(study.title, "Two");
  EXPECT_EQ(study.out, "there");
  const Study::Run& last = study.runs.back();
  EXPECT_EQ(last.workers, 3);
  EXPECT_EQ(key_of(last, "optimizer.lr"), "1");
  EXPECT_EQ(key_of(last, "mixing.scheme"), "atc");
  EXPECT_EQ(key_of(last, "optimizer.betas"), "[0.9, 0.99]");
  EXPECT_EQ(key_of(last, "workers"), "");
  EXPECT_EQ(study.name_of(study.arms.back()), "workers 3, method fast");
  EXPECT_NE(last.settings.find("run = train\nworkers = 3\n"), std::string::npos);
}

TEST_F(StudyFile, SettingsTellWhatChangesResults) {
  const auto settings = [&](const std::string& more) {
    return parse(kHead + more + "[grid]\nmixing.scheme = ['cta']\n").runs[0].settings;
  };
  const std::string usual = settings("");
  EXPECT_EQ(settings("[set]\nrun.threads = 2\n"), usual);
  EXPECT_NE(settings("[set]\ntrain.batch = 7\n"), usual);
  EXPECT_NE(settings("[simulate]\ngradient = 0.5\n"), usual);
  spill(folder_ / "recipe.toml", "[run]\nsteps = 4\n[optimizer]\nlr = 0.5\n");
  EXPECT_NE(settings(""), usual);
}

TEST_F(StudyFile, BadInputIsOneLineWithItsPlace) {
  const std::string grid = "[grid]\nmixing.scheme = ['cta', 'atc']\n";
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {"recipe = ", "study.toml:1: not TOML: "},
           {"workers = 4\n" + grid, "study.toml:1: the key recipe is missing"},
           {"recipe = 'none.toml'\n" + grid, "none.toml: "},
           {kHead + "runs = 3\n" + grid,
            "study.toml:3: unknown key \"runs\", did you mean run?; there are: title,"},
           {kHead + "run = 'fly'\n" + grid, "study.toml:3: run = \"fly\": allowed is simulate or train"},
           {kHead + "run = 'simulat'\n" + grid,
            "study.toml:3: run = \"simulat\", did you mean simulate?: allowed is simulate or train"},
           {kHead, "study.toml:1: the section [grid] is missing"},
           {kHead + "grid = 3\n", "study.toml:3: grid is a whole number, but must be a section: [grid]"},
           {"recipe = 'recipe.toml'\n" + grid, "study.toml:2: workers is missing: a number at the top"},
           {"recipe = 'recipe.toml'\nworkers = 0\n" + grid,
            "study.toml:2: workers: must be a whole number from 1 to 1024"},
           {kHead + "[grid]\nmixing.scheme = 'cta'\n",
            "study.toml:4: mixing.scheme is a text, but must be a list of values"},
           {kHead + "[grid]\nmixing.scheme = []\n",
            "study.toml:4: mixing.scheme is an array, but must be a list of values"},
           {kHead + "[grid]\nmixing.scheme = ['cta', 'cta']\n",
            "study.toml:4: mixing.scheme has the value \"cta\" twice"},
           {kHead + "[grid]\nmixing.scheme = ['cta', 'act']\n",
            "study.toml:4: mixing.scheme = \"act\": unknown, did you mean atc?, allowed is one of"},
           {kHead + "[grid]\nmixing.schem = ['cta']\n",
            "study.toml:4: unknown key \"schem\" in section mixing, did you mean scheme?"},
           {kHead + "[grid]\nscheme = ['cta']\n",
            "study.toml:4: \"scheme\": a key of the recipe has the form section.key"},
           {kHead + "[grid]\nmixing.scheme = [1979-05-27]\n",
            "study.toml:4: mixing.scheme is a date or time, which no key"},
           {kHead + "[grid]\nrun.seed = [1, 1]\n", "study.toml:4: run.seed has a value twice"},
           {kHead + "[grid]\nrun.seed = [-1]\n", "study.toml:4: run.seed: must be a whole number from 0"},
           {kHead + "[set]\nrun.seed = 3\n" + grid,
            "study.toml:4: run.seed cannot be set here: seeds are a list in [grid]"},
           {kHead + "[set]\ndata.name = 'text'\n" + grid,
            "study.toml:4: data.name cannot be set here: it is the same for"},
           {kHead + "[set]\ntrain.batch = 0\n" + grid,
            "study.toml:4: train.batch = 0: out of range, allowed is"},
           {kHead + grid + "[baseline]\nmixing.wire = 'int8'\n",
            "study.toml:6: \"mixing.wire\" is no list of [grid]; there are: mixing.scheme"},
           {kHead + grid + "[baseline]\nmixing.scheme = 'd2'\n",
            "study.toml:6: mixing.scheme = \"d2\": [grid] has no such value; there are: cta, atc"},
           {kHead + grid + "[baseline]\nmixing.schema = 'cta'\n",
            "study.toml:6: \"mixing.schema\" is no list of [grid], did you mean mixing.scheme?; there are: "},
           {kHead + grid + "[baseline]\nmixing.scheme = 'act'\n",
            "study.toml:6: mixing.scheme = \"act\": [grid] has no such value, did you mean atc?; there "
            "are: "},
           {kHead + grid + "[ablation]\nx = 3\n",
            "study.toml:6: \"x\": must be a section with another name than none"},
           {kHead + grid + "[ablation.x]\n", "study.toml:5: \"x\": changes no key"},
           {kHead + grid + "[simulate]\nspeed = 3\n",
            "study.toml:6: unknown key \"speed\"; there are: gradient,"},
           {kHead + grid + "[simulate]\ngradient = 'a'\n",
            "study.toml:6: gradient is a text, but must be a number"},
           {kHead + "run = 'train'\n" + grid + "[simulate]\ngradient = 1\n",
            "study.toml:6: [simulate] is for run = \"simulate\" alone"},
           {kHead + "[grid]\ndata.split = ['dirichlet:x']\n",
            "study.toml: run split=dirichlet:x,seed=1: data.split = "},
           {kHead + "[grid]\nm = [{ optimizer.lr = 1.0 }]\n", "study.toml:4: the key name is missing"},
           {kHead + "[grid]\nm = [{ name = 'a', optimizer.lr = 1.0 }]\noptimizer.lr = [0.1]\n",
            "study.toml:5: m and optimizer.lr both set optimizer.lr"},
           {kHead + "[grid]\noptimizer.lr = [0.1]\nm = [{ name = 'a', train.batch = 8 },"
                    "{ name = 'b', optimizer.lr = 1.0 }]\n",
            "study.toml:5: optimizer.lr and m both set optimizer.lr"},
       })
    EXPECT_THAT(error_of(text), testing::StartsWith(said)) << text;
  std::string seeds;
  for (int i = 0; i < 1001; ++i) seeds += std::to_string(i) + ",";
  EXPECT_EQ(error_of(kHead + "[grid]\nrun.seed = [" + seeds + "]\nmixing.scheme = ['cta', 'atc']\n"),
            "study.toml:3: more than 2000 runs");
  for (int i = 1001; i < 2001; ++i) seeds += std::to_string(i) + ",";
  EXPECT_EQ(error_of(kHead + "[grid]\nrun.seed = [" + seeds + "]\n"), "study.toml:3: more than 2000 runs");
}

// Whatever stands in the file, there is a study or one line.
TEST_F(StudyFile, DamagedFilesAreRefused) {
  const std::string whole =
      kHead +
      "title = 'x'\n[set]\ntrain.batch = 8\n[simulate]\ngradient = 0.5\n[grid]\nrun.seed = [1, 2]\n"
      "mixing.scheme = ['cta', 'atc']\nm = [{ name = 'a', optimizer.lr = 1.0 }]\n"
      "[baseline]\nmixing.scheme = 'cta'\n[ablation.b]\nschedule.warmup = 0.0\n";
  EXPECT_EQ(parse(whole).runs.size(), 8U);
  int refused = 0;
  constexpr std::string_view kMarks = "\n'\"[]{}=.,# 0aZ-\xff";
  for (std::uint64_t k = 0; k < 400; ++k) {
    std::string text = whole;
    const std::uint64_t bits = random_bits({11, k});
    const std::size_t at = bits % text.size(), length = bits >> 32 & 7;
    text.replace(at, length, 1, kMarks[(bits >> 40) % kMarks.size()]);
    try {
      parse(text);
    } catch (const UsageError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << text;
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace starling
