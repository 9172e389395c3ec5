#include "starling/plan/links.h"

#include <algorithm>

namespace starling {

Links::Links(const Network& network) : network_(network) {
  for (const Host& host : network.hosts)
    interfaces_.push_back({.sending = {}, .receiving = {}, .send = host.send, .receive = host.receive});
  for (const HostLink& link : network.links) {
    slow_[{link.from, link.to}] = static_cast<int>(slow_links_.size());
    slow_links_.push_back({.link = link});
  }
}

int Links::connect(int from_host, int to_host) {
  connections_.push_back({.from_host = from_host});
  detours_.emplace_back();
  later_.emplace_back();
  redirect(connections() - 1, to_host);
  return connections() - 1;
}

int Links::connect_group(int host, const std::vector<int>& member_hosts) {
  const int c = connect(host, host);
  Detour& detour = detours_[c];
  const auto outside =
      static_cast<double>(member_hosts.size()) - static_cast<double>(std::ranges::count(member_hosts, host));
  double slowest = 0;  // the largest seconds per byte to a member
  for (auto slow = slow_.lower_bound({host, 0}); slow != slow_.end() && slow->first.first == host; ++slow) {
    const auto there = static_cast<double>(std::ranges::count(member_hosts, slow->first.second));
    const HostLink& link = slow_links_[slow->second].link;
    if (there == 0) continue;
    detour.latency = std::max({network_.latency, detour.latency, link.latency});
    if (there / link.rate <= slowest) continue;
    slowest = there / link.rate;
    connections_[c].slow_link = slow->second;
    detour.over_slow_link = there / outside;
  }
  return c;
}

void Links::redirect(int c, int to_host) {
  Connection& connection = connections_[c];
  connection.to_host = to_host;
  const auto slow = slow_.find({connection.from_host, to_host});
  connection.slow_link = slow == slow_.end() ? -1 : slow->second;
  if (slow != slow_.end()) detours_[c].latency = slow_links_[slow->second].link.latency;
}

void Links::report_to(EventQueue& events, int first) {
  events_ = &events;
  first_ = first;
}

void Links::send(int c, const Message& message, double now) {
  Connection& connection = connections_[c];
  if (connection.busy) {
    connection.more = true;
    return later_[c].push_back(message);
  }
  begin(c, message, now);
  interfaces_[connection.from_host].sending.push_back(c);
  interfaces_[connection.to_host].receiving.push_back(c);
  if (connection.slow_link >= 0) ++slow_links_[connection.slow_link].sending;
  share_anew(connection, now);
}

void Links::begin(int c, const Message& message, double now) {
  Connection& connection = connections_[c];
  connection.busy = true;
  connection.block = message.block;
  connection.round = message.round;
  connection.both = message.both;
  connection.share = message.share;
  connection.left = message.bytes;
  connection.rate = 0;
  connection.since = now;
  const double whole = message.bytes / message.share;
  interfaces_[connection.from_host].sent += whole;
  interfaces_[connection.to_host].received += whole;
  if (connection.slow_link >= 0) {
    SlowLink& slow = slow_links_[connection.slow_link];
    slow.busy += message.bytes * detours_[c].over_slow_link / slow.link.rate;
  }
}

Links::Message Links::sent(int c, double now) {
  Connection& connection = connections_[c];
  const Message message{.block = connection.block, .round = connection.round, .both = connection.both};
  if (connection.more) {
    std::vector<Message>& later = later_[c];
    begin(c, later.front(), now);
    later.erase(later.begin());
    connection.more = !later.empty();
    set_rate(c, now);
  } else {
    connection.busy = false;
    std::erase(interfaces_[connection.from_host].sending, c);
    std::erase(interfaces_[connection.to_host].receiving, c);
    if (connection.slow_link >= 0) --slow_links_[connection.slow_link].sending;
    share_anew(connection, now);
  }
  return message;
}

// Updates the rates on all interfaces that this connection has just begun or ceased to use.
void Links::share_anew(const Connection& connection, double now) {
  for (int other : interfaces_[connection.from_host].sending) set_rate(other, now);
  for (int other : interfaces_[connection.to_host].receiving) set_rate(other, now);
}

// An interface divides its rate equally among its connections, in each direction. A slow link does
// so too.
void Links::set_rate(int c, double now) {
  Connection& connection = connections_[c];
  const Interface &from = interfaces_[connection.from_host], &to = interfaces_[connection.to_host];
  double rate = connection.share * std::min(from.send / static_cast<double>(from.sending.size()),
                                            to.receive / static_cast<double>(to.receiving.size()));
  if (connection.slow_link >= 0) {
    const SlowLink& slow = slow_links_[connection.slow_link];
    rate = std::min(rate, slow.link.rate / slow.sending / detours_[c].over_slow_link);
  }
  if (rate == connection.rate) return;
  connection.left -= connection.rate * (now - connection.since);
  connection.rate = rate;
  connection.since = now;
  events_->take_back(first_ + c);
  events_->push(now + std::max(connection.left, 0.0) / rate, first_ + c);
}

Busiest Links::busiest() const {
  Busiest busiest;
  const auto consider = [&](double seconds, int host, int to) {
    if (seconds > busiest.seconds) busiest = {seconds, host, to};
  };
  for (const SlowLink& slow : slow_links_) consider(slow.busy, slow.link.from, slow.link.to);
  for (std::size_t h = 0; h < interfaces_.size(); ++h) {
    const Interface& of = interfaces_[h];
    consider(std::max(of.sent / of.send, of.received / of.receive), static_cast<int>(h), -1);
  }
  return busiest;
}

}  // namespace starling
