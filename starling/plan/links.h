// Concurrent transfers share the hosts' interfaces and slow links. simulate.h and asynchronous.h
// define how.
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
    double share = 1;   // the share of the interfaces that its round reaches
    bool both = false;  // as much comes back, and leaves when both ends are ready
  };

  explicit Links(const Network& network);

  // A connection for messages, which go one after the other. Within a host, the host both sends and
  // receives them.
  int connect(int from_host, int to_host);
  // From a worker on this host to all others of its group, the same amount to each. The host
  // receives as much at the same time.
  int connect_group(int host, const std::vector<int>& member_hosts);
  void redirect(int connection, int to_host);  // only while nothing is on it
  int connections() const { return static_cast<int>(connections_.size()); }
  double latency(int connection) const {
    return connections_[connection].slow_link < 0 ? network_.latency : detours_[connection].latency;
  }

  // From now on connection c is source `first` + c of these events. Its message has left when that
  // event is due.
  void report_to(EventQueue& events, int first);
  void send(int connection, const Message& message, double now);
  Message sent(int connection, double now);  // the message that has left, without its bytes

  // The interface or slow link that was in use for longest, if all its traffic had gone one after
  // the other at its rate.
  Busiest busiest() const;

 private:
  // Many are waited for, so the fields that are always read fill one cache line.
  struct alignas(64) Connection {
    int from_host = 0, to_host = 0;
    int slow_link = -1;
    // The current message, if busy: `left` of its bytes at time `since`, and their rate from then
    // on.
    int block = 0, round = 0;
    bool both = false, busy = false;
    bool more = false;  // later_ has more messages for it
    double share = 1;
    double left = 0, rate = 0, since = 0;
  };
  struct Detour {
    double latency = 0;
    double over_slow_link = 1;  // the part of a connection's bytes that uses its slow link
  };
  struct Interface {
    std::vector<int> sending, receiving;  // connections in use
    double send = 0, receive = 0;         // bytes a second
    // Bytes, divided by the share of the interface that they reached.
    double sent = 0, received = 0;
  };
  struct SlowLink {
    HostLink link;
    int sending = 0;
    double busy = 0;  // seconds
  };

  void begin(int c, const Message& message, double now);
  void share_anew(const Connection& connection, double now);
  void set_rate(int c, double now);

  const Network& network_;
  std::map<std::pair<int, int>, int> slow_;  // by hosts: index into slow_links_
  std::vector<SlowLink> slow_links_;
  std::vector<Connection> connections_;
  std::vector<Detour> detours_;              // for connections with a slow link
  std::vector<std::vector<Message>> later_;  // by connection: few
  std::vector<Interface> interfaces_;
  EventQueue* events_ = nullptr;
  int first_ = 0;
};

}  // namespace starling
