// The timeline's spans, the ranges for torch's profiler, and the warnings of a worker that is not
// finite. Workers are threads.
#include <nlohmann/json.hpp>
#include <tuple>

#include <ATen/record_function.h>

#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using nlohmann::json;

constexpr int kRecorded = 4;
constexpr int kBlocks = 3;
constexpr std::int64_t kBlockFloats = 256 * 1024 / 4;  // the least that a block holds

at::Tensor with_gradient(std::int64_t length) {
  at::Tensor p = parameter({length}, 1);
  p.mutable_grad() = at::full({length}, 0.1, at::kFloat);
  return p;
}

json written(Timeline& timeline) {
  const Folder folder;
  timeline.write(folder / "timeline.json");
  return json::parse(slurp(folder / "timeline.json"));
}

// The timelines of three workers after kRecorded steps, as written to files.
std::vector<json> record(const std::string& scheme) {
  std::vector<std::shared_ptr<Timeline>> timelines(kWorkers);
  flock(kWorkers, [&](int i, World& world) {
    timelines[static_cast<std::size_t>(i)] = world.timeline = std::make_shared<Timeline>(i, kWorkers);
    const at::Tensor p = with_gradient(kBlocks * kBlockFloats);
    Optimizer optimizer({p}, SGD{.lr = 0.1}, {.topology = "complete", .scheme = scheme}, world);
    for (int step = 1; step <= kRecorded; ++step) {
      world.timeline->step(step);
      optimizer.step();
    }
    optimizer.consensus_distance();
  });
  std::vector<json> files;
  for (const auto& timeline : timelines) files.push_back(written(*timeline));
  return files;
}

struct Span {
  double begin = 0, end = 0;
};

// The training thread's spans by name, step and block, and the committed exchanges by peer, round
// and block.
struct Spans {
  explicit Spans(const json& file) {
    for (const json& event : file["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const json& args = event["args"];
      const Span span{event["ts"], event["ts"].get<double>() + event["dur"].get<double>()};
      if (event["name"] == "exchange") {
        if (args.value("outcome", "") == "committed")
          committed[{args["peer"], args["round"], args["block"]}] = span;
      } else {
        training[{event["name"], args["step"], args.value("block", -1)}].push_back(span);
      }
    }
  }
  // There must be exactly one.
  Span of(const std::string& name, int step, int block = -1) const {
    const auto found = training.find({name, step, block});
    if (found == training.end() || found->second.size() != 1) {
      ADD_FAILURE() << name << " of step " << step << ", block " << block;
      return {};
    }
    return found->second.front();
  }
  std::map<std::tuple<std::string, int, int>, std::vector<Span>> training;
  std::map<std::tuple<int, int, int>, Span> committed;
};

using Parts = std::vector<std::pair<const char*, int>>;  // name and block

// Steps follow each other, and so do the parts within a step.
void check_training_thread(const Spans& spans, const Parts& parts) {
  double time = 0;
  for (int step = 1; step <= kRecorded; ++step) {
    const Span whole = spans.of("optimizer step", step);
    EXPECT_LE(time, whole.begin);
    time = whole.begin;
    for (const auto& [name, block] : parts) {
      const Span part = spans.of(name, step, block);
      EXPECT_LE(time, part.begin) << name;
      EXPECT_LE(part.begin, part.end) << name;
      time = part.end;
    }
    EXPECT_LE(time, whole.end + 1e-3);  // of a nanosecond, in double
    time = whole.end;
  }
}

TEST(Seeing, TheTimelineHoldsEveryStepBlockAndPeer) {
  const std::vector<json> files = record("cta");
  for (int rank = 0; rank < kWorkers; ++rank) {
    SCOPED_TRACE(rank);
    const Spans spans(files[static_cast<std::size_t>(rank)]);
    Parts parts;
    for (int block = 0; block < kBlocks; ++block) {
      parts.emplace_back("wait", block);
      parts.emplace_back("mix + update", block);
    }
    check_training_thread(spans, parts);
    EXPECT_EQ(spans.training.count({"average", kRecorded, -1}), 1U);
    // A step mixes the blocks of the round of the same number, which the step before it sent.
    for (int step = 1; step <= kRecorded; ++step) {
      for (int block = 0; block < kBlocks; ++block) {
        for (int peer = 0; peer < kWorkers; ++peer) {
          const auto found = spans.committed.find({peer, step, block});
          ASSERT_EQ(found != spans.committed.end(), peer != rank) << peer << " " << step << " " << block;
          if (peer == rank) continue;
          if (step > 1) {
            EXPECT_GE(found->second.begin, spans.of("mix + update", step - 1, block).end);
          }
          EXPECT_LE(found->second.end, spans.of("wait", step, block).end);
        }
      }
    }
  }
}

// Each parameter is one block, and `used` of them have a gradient. Returns the gradients' spans by
// step, in their order.
std::vector<std::vector<Timeline::Span>> gradient_spans(const std::string& scheme, int used,
                                                        int broken_step) {
  std::vector<std::vector<Timeline::Span>> steps(kRecorded + 1);
  flock(1, [&](int, World& world) {
    world.timeline = std::make_shared<Timeline>(0, 1);
    std::vector<at::Tensor> p;
    for (int b = 0; b < kBlocks; ++b) p.push_back(parameter({kBlockFloats}, 1));
    Optimizer optimizer(p, SGD{.lr = 0.1}, {.scheme = scheme}, world);
    bool breaks = false;
    p[0].register_hook([&](const at::Tensor&) {
      if (breaks) throw Error("broken");
    });
    for (int step = 1; step <= kRecorded; ++step) {
      world.timeline->step(step);
      at::Tensor x = at::full({kBlockFloats}, 1, at::kFloat);
      for (int b = 0; b < used; ++b) x = x * p[static_cast<std::size_t>(b)];
      breaks = step == broken_step;
      if (breaks) {
        EXPECT_THROW(x.sum().backward(), Error);
        continue;
      }
      x.sum().backward();
      optimizer.step();
    }
    for (const Timeline::Span& span : world.timeline->spans()) {
      if (std::string(span.name) == "gradients")
        steps.at(static_cast<std::size_t>(span.step)).push_back(span);
    }
  });
  return steps;
}

TEST(Seeing, TheBackwardPassIsTiledByTheGradientsOfBlocks) {
  for (const std::string& scheme : scheme_names()) {
    const auto steps = gradient_spans(scheme, kBlocks, 0);
    for (int step = 1; step <= kRecorded; ++step) {
      const auto& spans = steps[static_cast<std::size_t>(step)];
      ASSERT_EQ(spans.size(), static_cast<std::size_t>(kBlocks)) << scheme;
      for (int i = 0; i < kBlocks; ++i) {
        const Timeline::Span& span = spans[static_cast<std::size_t>(i)];
        EXPECT_EQ(span.block, kBlocks - 1 - i);  // the last factor's gradient comes first
        EXPECT_LE(span.begin, span.end);
        if (i > 0) {
          EXPECT_EQ(span.begin, spans[static_cast<std::size_t>(i) - 1].end);
        }
      }
    }
  }
}

TEST(Seeing, ABlockWithoutAGradientTakesNoTime) {
  const auto steps = gradient_spans("cta", kBlocks - 1, 0);
  for (int step = 1; step <= kRecorded; ++step) {
    const auto& spans = steps[static_cast<std::size_t>(step)];
    ASSERT_EQ(spans.size(), static_cast<std::size_t>(kBlocks));
    EXPECT_EQ(spans.back().block, kBlocks - 1);
    EXPECT_EQ(spans.back().begin, spans.back().end);
  }
}

TEST(Seeing, GradientsAreSeenAgainAfterAPassThatFailed) {
  const auto steps = gradient_spans("cta", kBlocks, 2);
  EXPECT_EQ(steps[2].size(), static_cast<std::size_t>(kBlocks) - 1);
  for (const int step : {1, 3, 4})
    EXPECT_EQ(steps[static_cast<std::size_t>(step)].size(), static_cast<std::size_t>(kBlocks));
}

TEST(Seeing, AllReduceWaitsForAllBlocksAndThenUpdates) {
  Parts parts;
  for (int block = kBlocks; block-- > 0;) parts.emplace_back("wait", block);
  for (int block = 0; block < kBlocks; ++block) parts.emplace_back("mix + update", block);
  for (const json& file : record("all-reduce")) check_training_thread(Spans(file), parts);
}

TEST(Seeing, AnExchangeThatFailsSaysSo) {
  std::vector<World> worlds = World::threads(2);
  worlds[0].timeline = std::make_shared<Timeline>(0, 2);
  std::thread leaver(
      [&] { Optimizer({with_gradient(8)}, SGD{.lr = 0.1}, {.topology = "complete"}, worlds[1]); });
  {
    const at::Tensor p = with_gradient(8);
    Optimizer optimizer({p}, SGD{.lr = 0.1}, {.topology = "complete"}, worlds[0]);
    leaver.join();
    for (int step = 1; step <= 3; ++step) optimizer.step();  // nobody is there for the second
  }
  int aborted = 0;
  const json file = written(*worlds[0].timeline);
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "exchange") aborted += event["args"].value("outcome", "") == "aborted" ? 1 : 0;
  }
  EXPECT_GE(aborted, 2);
}

// --- torch's profiler ---

thread_local std::vector<std::string> ranges;  // "name" where one begins, "/" where it ends

struct Ranges {  // of this thread, while it lives
  struct Context final : at::ObserverContext {};
  Ranges() {
    ranges.clear();
    handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
              ranges.emplace_back(f.name());
              return std::make_unique<Context>();
            },
            [](const at::RecordFunction&, at::ObserverContext*) { ranges.emplace_back("/"); })
            .scopes({at::RecordScope::USER_SCOPE}));
  }
  ~Ranges() { at::removeCallback(handle); }
  at::CallbackHandle handle;
};

TEST(Seeing, TorchsProfilerShowsTheStep) {
  const std::string finish = "starling::finish", update = "starling::update", start = "starling::start",
                    end = "/";
  const auto step = [](const char* scheme) {
    const at::Tensor p = with_gradient(2 * kBlockFloats);
    Optimizer optimizer({p}, SGD{.lr = 0.1}, {.scheme = scheme}, World::alone());
    const Ranges recorded;
    optimizer.step();
    return ranges;
  };
  EXPECT_THAT(step("cta"), testing::ElementsAre("starling::step", finish, end, update, end, start, end,
                                                finish, end, update, end, start, end, end));
  EXPECT_THAT(step("all-reduce"), testing::ElementsAre("starling::step", finish, end, finish, end, update,
                                                       end, update, end, end));
  const std::string renew = "starling::renew";
  EXPECT_THAT(step("a2cid2"),
              testing::ElementsAre("starling::step", update, end, update, end, renew, end, renew, end, end));
  EXPECT_THAT(step("async-push-pull"), testing::ElementsAre("starling::step", "starling::track", end, update,
                                                            end, update, end, renew, end, renew, end, end));
}

// Once, and once more after it was finite in between.
TEST(Seeing, AWorkerThatIsNotFiniteSaysSoOnce) {
  for (const std::string scheme : {"cta", "atc", "ad-psgd", "a2cid2"}) {
    std::vector<LogLines> said(kWorkers);
    virtual_flock(kWorkers, [&](int i, World& world, VirtualTime& time) {
      world.log = said[static_cast<std::size_t>(i)].log();
      const at::Tensor p = with_gradient(1000);
      Optimizer optimizer({p}, SGD{.lr = 0.1}, {.topology = "ring", .scheme = scheme}, world);
      const auto steps_from = [&](double value) {
        p.detach().fill_(value);
        optimizer.begin_again();
        for (int t = 0; t < 20; ++t) {
          time.sleep(std::chrono::milliseconds(10));
          optimizer.step();
        }
      };
      for (int turn = 0; turn < 2; ++turn) {
        steps_from(1);
        steps_from(i == 1 ? NAN : 1);
        EXPECT_EQ(at::isfinite(p).all().item<bool>(), i != 1) << scheme;
      }
      nobody_leaves_yet(optimizer);
    });
    std::string what = scheme.starts_with("a") && scheme != "atc"
                           ? "this worker's parameters are not finite in averaging"
                           : "this worker's block 0 is not finite in round";
    for (int i = 0; i < kWorkers; ++i) {
      std::vector<std::string> lines = said[static_cast<std::size_t>(i)].all();
      std::erase_if(lines, [](const std::string& line) { return line.find("finite") == std::string::npos; });
      EXPECT_EQ(lines.size(), i == 1 ? 2U : 0U) << scheme << ": " << said[static_cast<std::size_t>(i)].text();
      EXPECT_THAT(lines, testing::Each(testing::HasSubstr(what)));
    }
  }
}

}  // namespace
}  // namespace starling
