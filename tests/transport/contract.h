// The fixture of the contract's tests, for every transport.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "fabric.h"
#include "recorder.h"

namespace starling {

inline std::vector<Frame> frames_from(int peer, const Recorder::Events& events) {
  std::vector<Frame> frames;
  for (const auto& e : events) {
    if (e.kind == Recorder::Kind::received && e.peer == peer) frames.push_back(e.frame);
  }
  return frames;
}

struct WithFabric {
  std::unique_ptr<Fabric> fabric;
};

class Contract : public ::testing::TestWithParam<Kit>, protected WithFabric, protected Ends {
 protected:
  // n workers, all edges open and up.
  void connect(int n) {
    begin(n);
    connect_all();
  }
  void begin(int n) {
    fabric = GetParam().make(n);
    for (int rank = 0; rank < n; ++rank) add(fabric->make(rank, "test"));
  }
  // Worker 0 sends 64 MiB to 1, of which some has arrived.
  bool bulk_is_under_way() {
    transports[0]->send(1, {.type = FrameType::data}, payload_of(random_block(64 << 20, 1)));
    return recorders[1]->wait([](const auto& events) { return !frames_from(0, events).empty(); });
  }
  void lose_and_regain(int victim);  // contract_ends_test.cpp
  // Runs work on the transport's thread and waits for it.
  void on_thread_of(int rank, const std::function<void()>& work) {
    std::promise<void> done;
    transports[rank]->post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
};

}  // namespace starling
