
// --- the toy topology ---

namespace starling {
namespace {

TEST(Schedules, ToyLine) {
  EXPECT_THAT(rounds_of("toy-line", 2), ElementsAre("(0,1)"));
  EXPECT_THAT(rounds_of("toy-line", 4, 3), ElementsAre("(0,1:1/3)(1,2:1/3)(2,3:1/3)"));
}

}  // namespace
}  // namespace starling
