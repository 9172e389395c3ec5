// The flows of a probe between three workers, of which two say what the input says (stage.h).
#include "starling/probe/flows.h"

#include <cmath>

#include "tests/fuzz/stage.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  constexpr auto kLong = std::chrono::milliseconds(100);
  Stage stage(bytes, 1, 3);
  World world{.rank = 1, .size = 3};
  world.timeouts = {.meet = kLong, .silent = kLong, .stalled = kLong};
  world.make_transport = [&](const World&, const std::string&) { return stage.transport(); };
  accepted([&] {
    Flows flows(world);
    check(flows.latency(0, 2) >= 0, "a latency below zero");
    for (const auto& [source, rate] : flows.stream({0, 2}, {0, 2}, std::chrono::milliseconds(20)))
      check(std::isfinite(rate) && rate >= 0, "a rate that is none");
    flows.meet();
    flows.check();
  });
}

}  // namespace starling::fuzz
