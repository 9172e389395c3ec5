#include "starling/membership/transfer.h"

#include <algorithm>
#include <atomic>
#include <future>

#include <gmock/gmock.h>

#include "starling/core/crc32c.h"
#include "starling/transport/local/local.h"
#include "starling/transport/tcp/tcp.h"
#include "tests/eventually.h"
#include "tests/exchange/deaf.h"
#include "tests/loopback.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class Transfer : public testing::Test {
 protected:
  Transfer() {
    for (int rank = 0; rank < 2; ++rank) {
      World& world = worlds.emplace_back(loopback_world(2));
      world.rank = rank;
      world.store = store;
      world.timeouts.silent = 1s;
      world.make_transport = make_tcp_transport;
    }
  }
  // A state of so many bytes.
  static std::unique_ptr<MemoryFile> state(std::size_t bytes) {
    auto file = std::make_unique<MemoryFile>();
    file->resize(bytes);
    std::size_t k = 0;
    for (std::byte& byte : file->bytes()) byte = static_cast<std::byte>(k++ * 7919 >> 3);
    return file;
  }

  static std::uint32_t hash_of(std::size_t bytes) { return crc32c(state(bytes)->bytes()); }

  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::vector<World> worlds;
};

TEST_F(Transfer, TheStateComesWhole) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5'000'001}}) {
    const std::string channel = std::to_string(bytes);
    std::atomic<int> changes = 0;
    const Donation donation(worlds[0], channel, 1, state(bytes), hash_of(bytes), [&] { ++changes; });
    EXPECT_FALSE(donation.is_taken());
    {
      Receipt receipt(worlds[1], channel, 0, bytes);
      receipt.wait(60s);
      EXPECT_FALSE(donation.is_taken()) << "it has not been read yet";
      receipt.accept();
      EXPECT_TRUE(eventually([&] { return changes == 1 && donation.is_taken(); }));
      EXPECT_TRUE(std::ranges::equal(receipt.state().bytes(), state(bytes)->bytes()));
    }
    EXPECT_TRUE(eventually([&] { return donation.is_over() && !donation.is_taken(); }))
        << "the newcomer has gone";
    EXPECT_TRUE(eventually([&] { return changes >= 2; })) << "the donor hears of it";
  }
}

TEST_F(Transfer, SeveralNewcomersGetOneCopy) {
  constexpr std::size_t kBytes = 5'000'001;
  const std::shared_ptr<MemoryFile> copy = state(kBytes);
  const auto donate = [&](const char* channel) {
    return std::make_unique<Donation>(worlds[0], channel, 1, copy, hash_of(kBytes), [] {});
  };
  const auto first = donate("f"), second = donate("g");
  for (const char* channel : {"f", "g"}) {
    Receipt receipt(worlds[1], channel, 0, kBytes);
    receipt.wait(60s);
    EXPECT_TRUE(std::ranges::equal(receipt.state().bytes(), copy->bytes())) << channel;
  }
}

TEST_F(Transfer, ADonorThatGoesIsNamed) {
  auto gone = std::async([&] { Donation(worlds[0], "a", 1, state(1 << 20), hash_of(1 << 20), [] {}); });
  EXPECT_THAT(refusal([&] { Receipt(worlds[1], "a", 0, 1 << 10).wait(60s); }),
              HasSubstr("worker 0 has not sent its state"));
}

TEST_F(Transfer, ADonorThatDoesNotComeIsNamed) {
  EXPECT_THAT(refusal([&] { Receipt(worlds[1], "b", 0, 1 << 10).wait(100ms); }),
              HasSubstr("worker 0 has not sent its state within 0.1 s"));
}

// As by SIGSTOP. Each part of the state takes a while, and the donor stops after some of them.
TEST_F(Transfer, ADonorThatStopsWhileItSendsIsFoundOut) {
  constexpr int kParts = 40;
  std::atomic<int> sent = 0;
  LocalHub* stops = nullptr;
  LocalHub hub(2, {}, {.cross = [&](int from, int, std::size_t, Time now) {
                 if (from == 0 && ++sent == kParts / 4) stops->pause(0);
                 return Crossing{now + 10ms, now + 10ms};
               }});
  stops = &hub;
  for (World& world : worlds) {
    world.timeouts.silent = 500ms;
    world.make_transport = [&hub](const World& of, const std::string&) { return hub.endpoint(of.rank); };
  }
  const std::size_t bytes = kParts * Frame::kMaxPayload;
  const Donation donation(worlds[0], "e", 1, state(bytes), hash_of(bytes), [] {});
  EXPECT_EQ(refusal([&] { Receipt(worlds[1], "e", 0, bytes).wait(1h); }),
            "worker 0 has stopped while it sent its state: nothing has come for 0.5 s");
  hub.resume(0);
}

TEST_F(Transfer, NobodyFillsTheNewcomersMemory) {
  const Donation donation(worlds[0], "c", 1, state(1000), hash_of(1000), [] {});
  EXPECT_THAT(refusal([&] { Receipt(worlds[1], "c", 0, 999).wait(60s); }),
              HasSubstr("it has 1000 bytes, at most 999 are possible"));
}

TEST_F(Transfer, AStateThatTheSystemRefusesIsNoEndOfTheNewcomer) {
  struct Liar : Deaf {
    explicit Liar(const World& world) : transport(world.make_transport(world, "d")) {
      transport->start(*this);
      transport->open(1);
    }
    void connected(int) override {
      const auto byte = std::make_shared<const std::byte>();
      transport->send(1, {.type = FrameType::data, .total = std::uint64_t{1} << 63}, {byte, {byte.get(), 1}});
    }
    const std::unique_ptr<Transport> transport;
  };
  const Liar liar(worlds[0]);
  EXPECT_THAT(refusal([&] { Receipt(worlds[1], "d", 0, ~std::size_t{0}).wait(60s); }),
              HasSubstr("worker 0 has not sent its state: a file in memory: cannot size it"));
}

}  // namespace
}  // namespace starling
