// A worker in a process of its own, for a test to kill:  transport_peer RANK SIZE TOKEN CHANNEL
// Reads the addresses of the other ranks from stdin, one line each, writes its own to stdout, connects to all of them,
// says hello to each, and waits for its end.
#include <cstdio>
#include <iostream>
#include <string>

#include "starling/transport/tcp/tcp.h"

namespace starling {
namespace {

class Greeter final : public TransportHandler {
 public:
  Transport* transport = nullptr;
  void connected(int peer) override { transport->send(peer, {.type = FrameType::heartbeat}); }
  void disconnected(int, const std::string&) override {}
  void lost(int, const std::string&) override {}
  std::span<std::byte> place(int, const Frame&) override { return {}; }
  void received(int, const Frame&, std::span<const std::byte>, bool) override {}
};

int run(char** argv) {
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
  const auto transport = make_tcp_transport(world, channel);
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
  if (argc != 5) {
    std::fputs("usage: transport_peer RANK SIZE TOKEN CHANNEL\n", stderr);
    return 2;
  }
  return starling::run(argv);
}
