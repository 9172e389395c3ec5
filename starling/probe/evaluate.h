// From what was measured to what the planner reads, and to what a person should know. No threads, no I/O.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "starling/plan/profile.h"

namespace starling {

struct MeasuredFlow {
  int from = 0, to = 0;  // workers
  double rate = 0;
};
// Exchanges with so many peers, all flows at once.
struct MeasuredExchanges {
  int peers = 0;
  std::vector<MeasuredFlow> flows;
};

// The place in the list of every worker's host.
std::vector<int> hosts_of_workers(const std::vector<Host>& hosts);

// From one host to another, by their places in the list; rates in bytes a second, latencies in seconds.
using BetweenHosts = std::map<std::pair<int, int>, double>;

struct Measurements {
  std::vector<Host> hosts;  // their names and workers
  BetweenHosts latency;     // both ways the same
  BetweenHosts one_flow;    // alone on the link
  BetweenHosts all_flows;   // of all workers of both hosts at once, and both ways
  std::vector<double> inside_latency, inside_rate;
  std::vector<MeasuredExchanges> exchanges;  // by rising peers; of those with as many the best counts
  std::vector<AllReduceTime> all_reduce;
};

// The network half of a profile:
//   send, receive   the most that a host has sent to another, and received from one, with one flow or all its flows
//   links           slower than 0.7 times what both ends can otherwise, or with more than three times the latency of most
//   shapes          the sum of what the flows between hosts carried, over what they could if each had its fair part of its
//                   sender's, its receiver's and its link's rate
Profile network_profile(const Measurements& measured);

// Bytes a second from each worker to each other one: what the link between their hosts carries, or, where that was not measured,
// the lesser of what both can; inside a host its workers' rate. 0 from a worker to itself.
std::vector<std::vector<double>> bandwidths(const Measurements& measured, const Profile& profile);

// What is slow or asymmetric, a line each: hosts that carry less than 0.7 times what most do, or 1.5 times more one way than the
// other; links that the profile lists; links that carry 1.5 times more one way than the other where the hosts do not.
std::vector<std::string> remarks(const Measurements& measured, const Profile& profile);

// "117 MB/s"
std::string rate_text(double rate);

}  // namespace starling
