// A worker in a process of its own, for a test to kill:
//
//   transport_peer RANK SIZE TOKEN CHANNEL [BYTES]
//
// It reads the addresses of the other ranks from stdin, one line each, and writes its own to
// stdout. It connects to all of them, sends a frame to each, and waits for its end. With BYTES its
// memory is mapped. It then sends each of them blocks of that many bytes equal to its rank, until
// one was read in place. It keeps their blocks that it can read in place, and reports each.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "starling/transport/mapped/mapped.h"
#include "starling/transport/tcp/tcp.h"
#include "tests/exchange/deaf.h"

namespace starling {
namespace {

class Greeter final : public Deaf {
 public:
  Transport* transport = nullptr;
  std::size_t bytes = 0;
  void connected(int peer) override {
    transport->send(peer, {.type = FrameType::heartbeat});
    if (bytes > 0) send_block(peer);
  }
  // One every 10 ms, until the peer has mapped my memory.
  void send_block(int peer) {
    const auto block = transport->buffer(bytes);
    std::fill(block->begin(), block->end(), static_cast<std::byte>(transport->rank()));
    transport->send(peer, {.type = FrameType::data}, payload_of(block));
    if (transport->bytes_in_place() == 0)
      transport->at(transport->now() + std::chrono::milliseconds(10), [this, peer] { send_block(peer); });
  }
  bool received_in_place(int peer, const Frame& frame, const Payload& payload) override {
    kept.push_back(payload);
    transport->send(peer, {.type = FrameType::ack, .round = frame.round});
    return true;
  }
  std::vector<Payload> kept;
};

int run(int argc, char** argv) {
  World world;
  world.rank = std::stoi(argv[1]);
  world.size = std::stoi(argv[2]);
  world.token = argv[3];
  world.address = "127.0.0.1";
  world.store = std::make_shared<MemoryStore>();
  const std::string channel = argv[4];
  for (int peer = 0; peer < world.size; ++peer) {
    std::string address;
    if (peer == world.rank) continue;
    std::getline(std::cin, address);
    world.store->set(tcp_address_key(channel, peer), address);
  }
  Greeter greeter;
  if (argc > 5) greeter.bytes = static_cast<std::size_t>(std::stoul(argv[5]));
  const auto transport =
      argc > 5 ? make_mapped_transport(world, channel) : make_tcp_transport(world, channel);
  greeter.transport = transport.get();
  transport->start(greeter);
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer != world.rank) transport->open(peer);
  }
  std::cout << world.store->get(tcp_address_key(channel, world.rank), world.timeouts.meet) << std::endl;
  std::string line;
  std::getline(std::cin, line);  // until the test ends, if it does not kill
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    std::fputs("usage: transport_peer RANK SIZE TOKEN CHANNEL [BYTES]\n", stderr);
    return 2;
  }
  return starling::run(argc, argv);
}
