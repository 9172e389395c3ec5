// The protocol of one edge, case by case.
#include "starling/exchange/edge.h"

#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace starling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Records the actions that the edge requests.
struct Recorder : EdgeActions {
  void send_block(SwapId id) override { say("block", id); }
  void cancel_block(SwapId id) override { say("cancel", id); }
  void send(FrameType type, SwapId id, bool yes) override {
    static const std::map<FrameType, std::string> names{
        {FrameType::ready, "ready"}, {FrameType::ack, "ack"},     {FrameType::abort, "abort"},
        {FrameType::skip, "skip"},   {FrameType::query, "query"}, {FrameType::outcome, "outcome"}};
    say(names.at(type) + (type == FrameType::outcome ? (yes ? " yes" : " no") : ""), id);
  }
  void decided(SwapId id, Outcome outcome) override {
    say(outcome == Outcome::committed ? "COMMITTED"
        : outcome == Outcome::aborted ? "ABORTED"
                                      : "IN DOUBT",
        id);
  }
  void mended(SwapId id, bool committed) override { say(committed ? "MENDED yes" : "MENDED no", id); }
  void say(const std::string& what, SwapId id) {
    said.push_back(fmt::format("{} {}.{}", what, id.round, id.block));
  }
  std::vector<std::string> take() { return std::exchange(said, {}); }
  std::vector<std::string> said;
};

struct EdgeTest : testing::Test {
  EdgeTest() { edge.connected(); }
  Recorder recorder;
  Edge edge{recorder};
  const SwapId id{7, 0};
  const SwapId next{8, 0};
  const Direction both{};
};

TEST_F(EdgeTest, CommitsWhenBothHaveVoted) {
  edge.start(id, both);
  EXPECT_THAT(recorder.take(), ElementsAre("block 7.0"));
  edge.block(id, true);
  EXPECT_THAT(recorder.take(), ElementsAre("ack 7.0"));
  edge.frame(FrameType::ack, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("COMMITTED 7.0"));
  EXPECT_THAT(edge.open(), IsEmpty());
}

TEST_F(EdgeTest, AFastPeerIsKeptUntilIAmReady) {
  EXPECT_TRUE(edge.wants(id));
  EXPECT_FALSE(edge.has(id));
  edge.block(id, true);
  EXPECT_FALSE(edge.wants(id));
  EXPECT_TRUE(edge.has(id));
  EXPECT_THAT(recorder.take(), IsEmpty());
  edge.start(id, both);
  EXPECT_THAT(recorder.take(), ElementsAre("block 7.0", "ack 7.0"));
  edge.frame(FrameType::ack, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("COMMITTED 7.0"));
  EXPECT_FALSE(edge.has(id));
}

TEST_F(EdgeTest, GivingUpAbortsAtBothEndsAndIsNoLongerPossibleAfterTheVote) {
  edge.start(id, both);
  EXPECT_TRUE(edge.give_up(id));
  EXPECT_THAT(recorder.take(), ElementsAre("block 7.0", "abort 7.0", "cancel 7.0", "ABORTED 7.0"));
  EXPECT_FALSE(edge.wants(id));
  edge.block(id, true);  // it comes after all: the peer is told again
  EXPECT_THAT(recorder.take(), ElementsAre("abort 7.0"));

  edge.start(next, both);
  edge.block(next, true);
  EXPECT_FALSE(edge.give_up(next));
}

TEST_F(EdgeTest, AnAbortReplacesThePeersVote) {
  edge.start(id, both);
  edge.block(id, true);
  recorder.take();
  edge.frame(FrameType::abort, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("cancel 7.0", "ABORTED 7.0"));
}

TEST_F(EdgeTest, AnAbortThatComesBeforeIAmReadyHolds) {
  edge.frame(FrameType::abort, id, false);
  EXPECT_FALSE(edge.wants(id));
  edge.start(id, both);
  EXPECT_THAT(recorder.take(), ElementsAre("cancel 7.0", "ABORTED 7.0"));
}

TEST_F(EdgeTest, ADamagedBlockIsRefusedBeforeAndAfterIAmReady) {
  edge.start(id, both);
  edge.block(id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("block 7.0", "abort 7.0", "cancel 7.0", "ABORTED 7.0"));
  edge.block(next, false);
  EXPECT_THAT(recorder.take(), ElementsAre("abort 8.0"));
  edge.start(next, both);
  EXPECT_THAT(recorder.take(), ElementsAre("cancel 8.0", "ABORTED 8.0"));
}

TEST_F(EdgeTest, AnUnusableBlockOfMineIsNotSent) {
  edge.start(id, both, false);
  EXPECT_THAT(recorder.take(), ElementsAre("abort 7.0", "cancel 7.0", "ABORTED 7.0"));
}

TEST_F(EdgeTest, ABrokenConnectionAbortsWhatIHaveNotVotedFor) {
  edge.start(id, both);
  recorder.take();
  edge.disconnected();
  EXPECT_THAT(recorder.take(), ElementsAre("cancel 7.0", "ABORTED 7.0"));
  edge.start(next, both);  // no peer
  EXPECT_THAT(recorder.take(), ElementsAre("ABORTED 8.0"));
  edge.connected();
  edge.frame(FrameType::query, id, false);  // the peer had voted
  EXPECT_THAT(recorder.take(), ElementsAre("outcome no 7.0"));
}

struct InDoubt : EdgeTest {
  InDoubt() {
    edge.start(id, both);
    edge.block(id, true);
    recorder.take();
    edge.disconnected();
  }
};

TEST_F(InDoubt, TheWorkerGoesOnAndAsksWhenThePeerIsBack) {
  EXPECT_THAT(recorder.take(), ElementsAre("IN DOUBT 7.0"));
  edge.connected();
  EXPECT_THAT(recorder.take(), ElementsAre("query 7.0"));
  edge.start(next, both);  // until the answer is here nothing new begins on this edge
  EXPECT_THAT(recorder.take(), ElementsAre("ABORTED 8.0"));
  edge.frame(FrameType::outcome, id, true);
  EXPECT_THAT(recorder.take(), ElementsAre("MENDED yes 7.0"));
  EXPECT_TRUE(edge.up());
}

TEST_F(InDoubt, ThePeerAborted) {
  recorder.take();
  edge.connected();
  edge.frame(FrameType::outcome, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("query 7.0", "MENDED no 7.0"));
}

TEST_F(InDoubt, WhereBothAreInDoubtNeitherCommits) {
  recorder.take();
  edge.connected();
  edge.frame(FrameType::query, id, false);
  edge.frame(FrameType::outcome, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("query 7.0", "outcome no 7.0", "MENDED no 7.0"));
  edge.disconnected();  // the answer is lost; the peer asks again
  edge.connected();
  edge.frame(FrameType::query, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("outcome no 7.0"));
}

TEST_F(EdgeTest, ACommittedSwapIsRememberedForAPeerInDoubt) {
  edge.start(id, both);
  edge.block(id, true);
  edge.frame(FrameType::ack, id, false);
  edge.disconnected();
  edge.connected();
  recorder.take();
  edge.frame(FrameType::query, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("outcome yes 7.0"));
}

TEST_F(EdgeTest, SkippedRoundsAreAbortedAtBothEnds) {
  edge.start(id, both);
  recorder.take();
  edge.frame(FrameType::skip, {20, 0}, false);  // the peer jumped
  EXPECT_THAT(recorder.take(), ElementsAre("cancel 7.0", "ABORTED 7.0"));
  edge.start({19, 0}, both);
  EXPECT_THAT(recorder.take(), ElementsAre("cancel 19.0", "ABORTED 19.0"));
  edge.start({20, 0}, both);
  EXPECT_THAT(recorder.take(), ElementsAre("block 20.0"));
  edge.give_up({20, 0});
  recorder.take();

  edge.block({21, 0}, true);  // early
  edge.skip(30);              // I jump
  EXPECT_THAT(recorder.take(), ElementsAre("skip 30.0"));
  EXPECT_FALSE(edge.wants({21, 0}));
  EXPECT_TRUE(edge.wants({30, 0}));
}

TEST_F(EdgeTest, ADirectedEdgeHasASenderAndAReceiverAndBothVote) {
  edge.start(id, {.send = true, .receive = false});
  EXPECT_THAT(recorder.take(), ElementsAre("block 7.0", "ack 7.0"));
  edge.frame(FrameType::ack, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("COMMITTED 7.0"));

  edge.frame(FrameType::ack, next, false);  // the sender's vote overtakes its block
  edge.start(next, {.send = false, .receive = true});
  EXPECT_THAT(recorder.take(), IsEmpty());
  edge.block(next, true);
  EXPECT_THAT(recorder.take(), ElementsAre("ack 8.0", "COMMITTED 8.0"));
}

// A receiver is silent until it has the block: it must not wait for one that will not come.
TEST_F(EdgeTest, AReceiverIsToldWhatItsSenderHasPassedOrDecidedWithoutIt) {
  const Direction push{.send = true, .receive = false};
  edge.pass({7, 0}, push);
  EXPECT_THAT(recorder.take(), ElementsAre("abort 7.0", "ABORTED 7.0"));
  edge.start({8, 0}, push);
  edge.disconnected();
  edge.pass({9, 0}, push);
  recorder.take();
  edge.connected();
  EXPECT_THAT(recorder.take(), ElementsAre("query 8.0", "skip 10.0"));
  edge.frame(FrameType::outcome, {8, 0}, false);
  recorder.take();
  edge.start({10, 0}, push);
  recorder.take();
  edge.frame(FrameType::skip, {11, 0}, false);  // it has jumped, and never began this one
  EXPECT_THAT(recorder.take(), ElementsAre("cancel 10.0", "ABORTED 10.0"));
}

TEST_F(EdgeTest, WhatWasSkippedWithoutAConnectionIsToldWhenThereIsOne) {
  edge.disconnected();
  edge.skip(9);
  EXPECT_THAT(recorder.take(), IsEmpty());
  edge.connected();
  EXPECT_THAT(recorder.take(), ElementsAre("skip 9.0"));
}

TEST_F(EdgeTest, ASenderAsksForItsVoteBackAndTheReceiverGrantsItWhereItHasNotVoted) {
  edge.start(id, {.send = true, .receive = false});
  EXPECT_THAT(recorder.take(), ElementsAre("block 7.0", "ack 7.0"));
  EXPECT_FALSE(edge.give_up(id));
  EXPECT_FALSE(edge.give_up(id));
  EXPECT_THAT(recorder.take(), ElementsAre("abort 7.0"));
  edge.frame(FrameType::abort, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("cancel 7.0", "ABORTED 7.0"));

  const Direction pull{.send = false, .receive = true};
  edge.frame(FrameType::ack, next, false);
  edge.frame(FrameType::abort, next, true);
  EXPECT_THAT(recorder.take(), ElementsAre("abort 8.0"));
  edge.start(next, pull);
  EXPECT_THAT(recorder.take(), ElementsAre("cancel 8.0", "ABORTED 8.0"));
}

TEST_F(EdgeTest, ALargeBlockGoesWhenBothAreReady) {
  edge.start(id, both, true, Sending::when_all_are_ready);
  edge.release(id);
  EXPECT_THAT(recorder.take(), ElementsAre("ready 7.0"));
  edge.frame(FrameType::ready, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("block 7.0"));
  edge.frame(FrameType::ready, next, false);  // the peer is ahead
  EXPECT_THAT(recorder.take(), IsEmpty());
  edge.start(next, both, true, Sending::when_all_are_ready);
  edge.release(next);
  EXPECT_THAT(recorder.take(), ElementsAre("ready 8.0", "block 8.0"));
  edge.frame(FrameType::ready, next, false);
  EXPECT_THAT(recorder.take(), IsEmpty());
}

TEST_F(EdgeTest, ALargeBlockOfThisRoundWaitsForWhatMovesOfTheLast) {
  edge.start(id, both, true, Sending::when_all_are_ready);
  edge.release(id);
  EXPECT_FALSE(edge.moves_before(8));  // the peer is not ready yet
  edge.frame(FrameType::ready, id, false);
  EXPECT_TRUE(edge.moves_before(8));
  EXPECT_FALSE(edge.moves_before(7));
  recorder.take();
  edge.start(next, both, true, Sending::when_all_are_ready);
  edge.frame(FrameType::ready, next, false);
  EXPECT_THAT(recorder.take(), IsEmpty());
  edge.block(id, true);
  edge.frame(FrameType::ack, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("ack 7.0", "COMMITTED 7.0"));
  EXPECT_FALSE(edge.moves_before(9));  // a held block does not move
  edge.release(next);
  EXPECT_THAT(recorder.take(), ElementsAre("ready 8.0", "block 8.0"));
  EXPECT_TRUE(edge.moves_before(9));
  edge.release(next);
  edge.release({9, 0});
  EXPECT_THAT(recorder.take(), IsEmpty());
}

TEST_F(EdgeTest, ALargeBlockOnADirectedEdgeWaitsForNobody) {
  edge.start(id, {.send = true, .receive = false}, true, Sending::when_all_are_ready);
  EXPECT_THAT(recorder.take(), ElementsAre("block 7.0", "ack 7.0"));
}

TEST_F(EdgeTest, APeerThatIsReadyForWhatIsPastIsTold) {
  edge.pass(id);
  recorder.take();
  edge.frame(FrameType::ready, id, false);
  EXPECT_THAT(recorder.take(), ElementsAre("abort 7.0"));
  edge.frame(FrameType::ready, next, false);
  edge.pass(next);
  EXPECT_THAT(recorder.take(), ElementsAre("abort 8.0", "ABORTED 8.0"));
  const SwapId last{9, 0};
  edge.start(last, both, true, Sending::when_all_are_ready);
  edge.release(last);
  EXPECT_TRUE(edge.give_up(last));  // without having sent
  EXPECT_THAT(recorder.take(), ElementsAre("ready 9.0", "abort 9.0", "cancel 9.0", "ABORTED 9.0"));
}

TEST_F(EdgeTest, ABlockThatIsPassedWhileThePeerWaitsIsAnswered) {
  edge.block(id, true);
  edge.pass(id);
  EXPECT_THAT(recorder.take(), ElementsAre("abort 7.0", "ABORTED 7.0"));
}

}  // namespace
}  // namespace starling
