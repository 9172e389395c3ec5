// The protocol of a group: the members that it waits for, and the order of its large parts.
// protocol_fuzz_test has the rest.
#include "starling/exchange/group.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace starling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Records the actions that the group requests.
struct Recorder : GroupActions {
  void send_parts(SwapId id) override { say("parts", id); }
  void send_mean(SwapId id) override { say("mean", id); }
  void cancel(SwapId id) override { say("cancel", id); }
  void send(int peer, FrameType type, SwapId id, bool yes) override {
    static const std::map<FrameType, std::string> names{
        {FrameType::group_ready, "ready"}, {FrameType::group_ack, "ack"}, {FrameType::group_abort, "abort"}};
    said.push_back(
        fmt::format("{}{} to {} {}.{}", names.at(type), yes ? " yes" : "", peer, id.round, id.block));
  }
  void decided(SwapId id, Outcome outcome, bool in_pairs) override {
    say(fmt::format("{}{}", name_of(outcome), in_pairs ? " in pairs" : ""), id);
  }
  void mended(SwapId id, bool committed) override { say(committed ? "mended yes" : "mended no", id); }
  void say(const std::string& what, SwapId id) {
    said.push_back(fmt::format("{} {}.{}", what, id.round, id.block));
  }
  std::vector<std::string> take() { return std::exchange(said, {}); }
  std::vector<std::string> said;
};

// I am with 1 and 2.
struct GroupTest : testing::Test {
  void start(SwapId id) { group.start(id, {1, 2}, true, Sending::when_all_are_ready); }
  void from_both(void (Group::*event)(int, SwapId, bool), SwapId id) {
    for (const int peer : {1, 2}) (group.*event)(peer, id, true);
  }
  void ready(int peer, SwapId id) { group.frame(peer, FrameType::group_ready, id, false); }
  Recorder recorder;
  Group group{recorder};
  const SwapId id{7, 0};
  const SwapId next{8, 0};
};

TEST_F(GroupTest, SmallPartsGoAtOnce) {
  group.start(id, {1, 2}, true);
  EXPECT_THAT(recorder.take(), ElementsAre("parts 7.0"));
  EXPECT_FALSE(group.moves_before(8));
}

TEST_F(GroupTest, LargePartsGoWhenAllAreReady) {
  ready(2, id);
  start(id);
  EXPECT_THAT(recorder.take(), IsEmpty());
  group.release(id);
  EXPECT_THAT(recorder.take(), ElementsAre("ready to 1 7.0", "ready to 2 7.0"));
  EXPECT_FALSE(group.moves_before(8));
  ready(1, id);
  EXPECT_THAT(recorder.take(), ElementsAre("parts 7.0"));
  group.release(id);
  ready(1, id);
  EXPECT_THAT(recorder.take(), IsEmpty());
}

TEST_F(GroupTest, ItMovesUntilItIsDecided) {
  start(id);
  group.release(id);
  for (const int peer : {1, 2}) ready(peer, id);
  from_both(&Group::part, id);
  from_both(&Group::mean, id);
  EXPECT_TRUE(group.moves_before(8));
  EXPECT_FALSE(group.moves_before(7));
  for (const int peer : {1, 2}) group.frame(peer, FrameType::group_ack, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("ready to 1 7.0", "ready to 2 7.0", "parts 7.0", "mean 7.0",
                                           "ack to 1 7.0", "ack to 2 7.0", "committed 7.0"));
  EXPECT_FALSE(group.moves_before(8));
  for (const int peer : {1, 2}) ready(peer, next);
  start(next);
  EXPECT_FALSE(group.moves_before(9));  // held parts do not move
}

TEST_F(GroupTest, WhoIsNotReadyIsLateAndWhoIsGoesOnInPairs) {
  start(id);
  group.release(id);
  ready(1, id);
  EXPECT_THAT(group.not_started(id), ElementsAre(2));
  recorder.take();
  EXPECT_TRUE(group.give_up(id));
  EXPECT_THAT(recorder.take(),
              ElementsAre("abort to 1 7.0", "abort yes to 2 7.0", "cancel 7.0", "aborted in pairs 7.0"));
  ready(2, id);  // it comes late
  EXPECT_THAT(recorder.take(), ElementsAre("abort yes to 2 7.0"));
}

TEST_F(GroupTest, WhoIsReadyAndDoesNotSendIsLate) {
  start(id);
  group.release(id);
  for (const int peer : {1, 2}) ready(peer, id);
  group.part(2, id, true);
  EXPECT_THAT(group.not_started(id), ElementsAre(1));
}

// It may wait for a member that I can hear.
TEST_F(GroupTest, WhoIsReadyIsNotBehind) {
  start(id);
  group.release(id);
  for (const int peer : {1, 2}) ready(peer, id);
  recorder.take();
  EXPECT_TRUE(group.give_up(id));
  EXPECT_THAT(recorder.take(),
              ElementsAre("abort to 1 7.0", "abort to 2 7.0", "cancel 7.0", "aborted in pairs 7.0"));
}

TEST_F(GroupTest, WhoBreaksAwayBeforeIStartHasToSayItAgain) {
  ready(1, id);
  ready(2, id);
  group.disconnected(1);
  start(id);
  group.release(id);
  EXPECT_THAT(recorder.take(), ElementsAre("ready to 1 7.0", "ready to 2 7.0"));
  EXPECT_THAT(group.not_started(id), ElementsAre(1));
}

}  // namespace
}  // namespace starling
