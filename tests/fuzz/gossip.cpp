// The gossip of a worker with three others, which say what the input says (stage.h). The first byte
// chooses the algorithm; each byte after it lets this worker do something, or play an event.
#include "starling/gossip/gossip.h"

#include "starling/topology/schedules.h"
#include "tests/fuzz/stage.h"

namespace starling::fuzz {
namespace {

constexpr int kMe = 1, kWorkers = 4, kMostActs = 200;
constexpr auto kLong = std::chrono::milliseconds(300);

struct Kind {
  std::shared_ptr<const PairAlgorithm> algorithm;
  Wire wire = Wire::fp32;
};

Kind kind_of(std::size_t chosen) {
  const A2cid2 momentum{.chi1 = 1, .chi2 = 1, .eta = 0.5};
  if (chosen % 4 == 0) return {pair_averaging(), Wire::fp32};
  if (chosen % 4 == 1) return {pair_averaging(momentum), Wire::int4};
  return {chosen % 4 == 2 ? pair_push() : pair_push_pull(), Wire::fp32};
}

class Worker {
 public:
  Worker(std::string_view input, const Kind& kind)
      : stage_(input, kMe, kWorkers),
        gossip_(stage_.transport(),
                {.rates = pair_rates(make_schedule("complete", kWorkers), 2),
                 .algorithm = kind.algorithm,
                 .wire = kind.wire,
                 .meet = kLong,
                 .needs_all = false,
                 .patience = kLong,
                 .silent = kLong},
                on_host({{1, 2, 3}, {4, 5}}, *kind.algorithm), kOneLine) {}

  void run() {
    gossip_.meet();
    for (int acts = 0; acts < kMostActs && !stage_.script.ended(); ++acts) act(stage_.script.byte() % 16);
    gossip_.pause();
    const GossipStatistics statistics = gossip_.statistics();
    check(statistics.neighbours.size() == kWorkers - 1, "other neighbours");
    check(statistics.averaged <= statistics.pairing.begun, "averagings that have not begun");
  }

 private:
  void act(int what) {
    const auto nudge = [](const Held& held) {
      for (float& x : held.x) x += 1;
    };
    if (what < 2) gossip_.gradient(what, nudge);
    if (what == 2 || what == 3) gossip_.stepped();
    if (what == 4) gossip_.pause();
    if (what == 5) gossip_.stand_by();
    if (what == 6) gossip_.resume();
    if (what == 7) gossip_.forget();
    stage_.turn();
  }

  Stage stage_;
  Gossip gossip_;
};

}  // namespace

void read(std::string_view bytes) {
  if (bytes.empty()) return;
  const Kind kind = kind_of(static_cast<unsigned char>(bytes.front()));
  accepted([&] { Worker(bytes.substr(1), kind).run(); });
}

}  // namespace starling::fuzz
