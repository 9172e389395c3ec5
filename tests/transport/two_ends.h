// Two workers of a fabric, with a connected edge between them.
#pragma once

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "fabric.h"
#include "recorder.h"

namespace starling {

template <class SomeFabric>
struct TwoEnds {
  template <class... More>
  explicit TwoEnds(More... more) : fabric(2, more...) {
    for (int rank = 0; rank < 2; ++rank) {
      transports.push_back(fabric.make(rank, "test"));
      transports.back()->start(recorders[rank]);
    }
    for (int rank = 0; rank < 2; ++rank) transports[rank]->open(1 - rank);
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(recorders[rank].wait_for(Recorder::Kind::connected, 1 - rank));
  }
  // A block of 9 MB.
  ::testing::AssertionResult a_block_arrives(int from, std::uint64_t round) {
    const auto block = random_block(9'000'001, static_cast<unsigned>(round));
    transports[from]->send(1 - from, {.type = FrameType::data, .round = round}, payload_of(block));
    if (!recorders[1 - from].wait_for_frame(from, FrameType::data, round))
      return ::testing::AssertionFailure() << "it does not come";
    if (recorders[1 - from].block(from, FrameType::data, round) != *block)
      return ::testing::AssertionFailure() << "another one comes";
    return ::testing::AssertionSuccess();
  }

  SomeFabric fabric;
  Recorder recorders[2];
  std::vector<std::unique_ptr<Transport>> transports;  // last: they end before their handlers go
};

}  // namespace starling
