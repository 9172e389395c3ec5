#include "starling/world/store.h"

#include <thread>

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

TEST(MemoryStore, WaitsForAKeyAndNamesTheOneThatDoesNotCome) {
  MemoryStore store;
  std::thread setter([&] { store.set("a", "1"); });
  EXPECT_EQ(store.get("a", std::chrono::minutes(5)), "1");
  setter.join();
  store.set("a", "2");
  EXPECT_EQ(store.get("a", milliseconds(0)), "2");
  EXPECT_EQ(refusal([&] { store.get("b", milliseconds(1)); }),
            "store: nobody has set the key 'b' within 1 ms");
  EXPECT_EQ(refusal([&] { store.get("b", std::chrono::hours(1), [] { return true; }); }),
            "store: interrupted while nobody had set the key 'b'");
}

}  // namespace
}  // namespace starling
