// What is on its way at the same time shares the hosts' interfaces and slow links: simulate.h and asynchronous.h say how.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "starling/plan/events.h"
#include "starling/plan/simulate.h"

namespace starling {

class Links {
 public:
  struct Message {
    int block = 0;
    int round = 0;
    double bytes = 0;
    double share = 1;   // of the interfaces, that its round reaches
    bool both = false;  // as much comes back, and goes when both ends are ready
  };

  explicit Links(const Network& network);

  // A way for messages, which go one after the other. Within a host: what it sends it receives, too.
  int connect(int from_host, int to_host);
  // From a worker on this host to all the others of its group, as much to each, and its host receives as much meanwhile.
  int connect_group(int host, const std::vector<int>& member_hosts);
  void redirect(int connection, int to_host);  // while nothing is on it
  int connections() const { return static_cast<int>(connections_.size()); }
  double latency(int connection) const {
    return connections_[connection].slow_link < 0 ? network_.latency : detours_[connection].latency;
  }

  // From here on: connection c is source `first` + c of these events, and its message leaves when that event is due.
  void report_to(EventQueue& events, int first);
  void send(int connection, const Message& message, double now);
  Message sent(int connection, double now);  // what has left, without its bytes

  // Which interface or slow link was in use for longest, had all it carried gone one after the other at its rate.
  Busiest busiest() const;

 private:
  struct alignas(64) Connection {  // many are waited for: what is always looked at is a cache line
    int from_host = 0, to_host = 0;
    int slow_link = -1;
    // The message that is on its way, if busy: `left` of its bytes at time `since`, and their rate from then on.
    int block = 0, round = 0;
    bool both = false, busy = false;
    bool more = false;  // later_ has some for it
    double share = 1;
    double left = 0, rate = 0, since = 0;
  };
  struct Detour {
    double latency = 0;
    double over_slow_link = 1;  // the part of a connection's bytes that goes over its slow link
  };
  struct Interface {
    std::vector<int> sending, receiving;  // connections with something on its way
    double send = 0, receive = 0;         // bytes a second
    double sent = 0, received = 0;        // bytes, over the share of the interface that they reached
  };
  struct SlowLink {
    HostLink link;
    int sending = 0;
    double busy = 0;  // seconds
  };

  void route(int c, int to_host);
  void begin(int c, const Message& message, double now);
  void share_anew(const Connection& connection, double now);
  void set_rate(int c, double now);

  const Network& network_;
  std::map<std::pair<int, int>, int> slow_;  // by hosts: of slow_links_
  std::vector<SlowLink> slow_links_;
  std::vector<Connection> connections_;
  std::vector<Detour> detours_;              // of connections with a slow link
  std::vector<std::vector<Message>> later_;  // by connection: few
  std::vector<Interface> interfaces_;
  EventQueue* events_ = nullptr;
  int first_ = 0;
};

}  // namespace starling
