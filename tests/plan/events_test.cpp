#include "starling/plan/events.h"

#include <random>
#include <set>

#include <gtest/gtest.h>

namespace starling {
namespace {

// Against a sorted set, for any estimates: events come by time, equal ones by number.
TEST(Events, ComeInOrderWhateverWasGuessed) {
  for (const double span : {0.0, 1e-3, 1.0, 1e3}) {
    std::mt19937_64 random(5);
    constexpr int kSources = 2000;
    EventQueue queue(kSources, span < 1 ? 1 : 10 * kSources, span);
    std::set<std::pair<double, int>> sorted;
    double now = 0;
    const auto push = [&](int source) {
      double ahead = 0;
      switch (random() % 4) {
        case 0:
          break;  // at once
        case 1:
          ahead = static_cast<double>(random() % 4) / 4;
          break;  // many equal
        case 2:
          ahead = static_cast<double>(random() % 1000) / 1000;
          break;
        default:
          // Far and near.
          ahead = random() % 50 == 0 ? 1e4 : 1e-7 * static_cast<double>(random() % 100);
      }
      queue.push(now + ahead, source);
      sorted.emplace(now + ahead, source);
    };
    for (int source = 0; source < kSources; ++source) push(source);
    for (int k = 0; k < 20000; ++k) {
      if (random() % 3 == 0) {  // one is withdrawn, and comes at another time
        const auto source = static_cast<int>(random() % kSources);
        const bool pending =
            std::erase_if(sorted, [&](const auto& event) { return event.second == source; }) > 0;
        queue.take_back(source);
        if (pending) push(source);
      }
      const EventQueue::Event event = queue.pop();
      ASSERT_EQ(std::pair(event.time, event.source), *sorted.begin()) << "span " << span << ", event " << k;
      sorted.erase(sorted.begin());
      now = event.time;
      if (random() % 100 != 0 || sorted.size() < 5) push(event.source);
    }
    while (!queue.empty()) {
      const EventQueue::Event event = queue.pop();
      ASSERT_EQ(std::pair(event.time, event.source), *sorted.begin());
      sorted.erase(sorted.begin());
    }
    EXPECT_TRUE(sorted.empty());
  }
}

}  // namespace
}  // namespace starling
