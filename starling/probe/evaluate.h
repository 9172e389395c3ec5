// From measurements to the planner's input, and to remarks for the user. No threads, no I/O.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "starling/plan/profile.h"

namespace starling {

struct MeasuredFlow {
  int from = 0, to = 0;  // workers
  double rate = 0;
};
// Exchanges with `peers` peers, all flows at once.
struct MeasuredExchanges {
  int peers = 0;
  std::vector<MeasuredFlow> flows;
};

// The planned flows of a measurement, as (from, to); the rates or latencies of all measurements.
using FlowSet = std::set<std::pair<int, int>>;
using Measured = std::vector<std::map<std::pair<int, int>, double>>;

// One worker's measurements: lines of "measurement from to value".
std::string to_text(const Measured& mine);
// Those of all workers, by their texts. Throws Error, and names the worker, unless each planned
// flow has one value, a number from 0, and no other flow has any.
Measured measured_by_all(const std::vector<FlowSet>& planned, const std::vector<std::string>& texts);

// A worker's card: its host's identity, name and address, a line each.
std::string host_card(const std::string& identity, const std::string& name, const std::string& address);
// The hosts of all workers, by their cards, in the order of their lowest ranks. Hosts with the same
// name get their address appended. Throws Error, and names the worker whose card is none.
std::vector<Host> hosts_by_cards(const std::vector<std::string>& cards);

// By worker: the place of its host in the list.
std::vector<int> hosts_of_workers(const std::vector<Host>& hosts);

// From one host to another, by their places in the list. Rates in bytes a second, latencies in
// seconds.
using BetweenHosts = std::map<std::pair<int, int>, double>;

struct Measurements {
  std::vector<Host> hosts;  // their names and workers
  BetweenHosts latency;     // the same in both directions
  BetweenHosts one_flow;    // alone on the link
  BetweenHosts all_flows;   // all workers of both hosts at once, in both directions
  std::vector<double> inside_latency, inside_rate;
  std::vector<MeasuredExchanges> exchanges;  // by rising peers; the best one for each number
  std::vector<AllReduceTime> all_reduce;
};

// The network half of a profile:
//   send, receive   the highest rate to another host and from one, with one flow or all its flows
//   links           slower than 0.7 times what both ends reach otherwise, or with more than three
//                   times the typical latency
//   shapes          the sum of the rates of the flows between hosts, over the sum of their fair
//                   parts of the sender's, the receiver's and the link's rate
Profile network_profile(const Measurements& measured);

// Bytes a second between any two workers: the rate of the link between their hosts or, if not
// measured, the lower of both hosts' rates. Inside a host its workers' rate. 0 from a worker to
// itself.
std::vector<std::vector<double>> bandwidths(const Measurements& measured, const Profile& profile);

// Slow or asymmetric parts, a line each:
//
// - hosts with less than 0.7 times the typical rate, or with 1.5 times more in one direction
// - links that the profile lists
// - links with 1.5 times more in one direction, if the hosts do not explain it
std::vector<std::string> remarks(const Measurements& measured, const Profile& profile);

// "117 MB/s"
std::string rate_text(double rate);

}  // namespace starling
