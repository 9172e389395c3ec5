// The measurements of a run and of its network: `profile.json`, the input of a plan.
//
//   {
//     "format": "starling-profile", "version": 2,
//     "units": {"time": "s", "data": "B", "rate": "B/s"},
//
//     "hosts": [{"name": "a", "workers": [0, 1], "send": 1.2e9, "receive": 1.2e9}, ...],
//     "between": {"latency": 5e-5},
//     "inside": {"latency": 2e-6, "rate": 8e9},
//     "links": [{"from": "a", "to": "b", "latency": 9e-5, "rate": 3e8}],
//     "shapes": [{"peers": 1, "share": 1}, {"peers": 3, "share": 0.9}],
//     "all_reduce": [{"bytes": 26214400, "seconds": 0.04}, ...],
//
//     "blocks": [{"bytes": 26214400}, ...],
//     "compute": [{"worker": 0, "data_wait": [..], "forward": [..], "backward": [[..], ..],
//                  "update": [[..], ..]}, ...]
//   }
//
// A profile has two halves: the network, from `hosts` to `all_reduce` (`starling probe` writes it),
// and the compute, `blocks` and `compute` (`starling train --profile-out`). A file holds one of
// them or both.
//
//   hosts       `send` and `receive`: the rate of the host's network interface in each direction,
//               with all its workers active. Every worker 0 .. n-1 is on exactly one host. These
//               and `between` are optional for a single host.
//   between     any two hosts
//   inside      two workers of one host; absent if no host has two
//   links       the pairs of hosts that are slower or farther than that, one direction each;
//               optional
//   shapes      by rising number of peers with which a worker exchanges at once: the part of `send`
//               and `receive` that such exchanges reach with all their flows at once. A group of up
//               to five has all others as peers. Optional; the default is all of it
//   all_reduce  the time of one all-reduce among all workers, in a sequence of several; optional
//   blocks      in the order in which backward() finishes them, with the bytes of their parameters
//               in fp32
//   compute     each worker's own time, in seconds. Entry k of every list belongs to the same
//               iteration k, so correlated times stay together; `backward` and `update` hold a list
//               for each block
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

struct Host {
  std::string name;
  std::vector<int> workers{};
  double send = std::numeric_limits<double>::infinity();  // not known
  double receive = std::numeric_limits<double>::infinity();
};

// One direction between two hosts, by their places in the list.
struct HostLink {
  int from = 0;
  int to = 0;
  double latency = 0;
  double rate = 0;
};

struct Shape {
  int peers = 0;
  double share = 0;
};

struct Compute {
  std::vector<double> data_wait;              // [iteration]
  std::vector<double> forward;                // [iteration]
  std::vector<std::vector<double>> backward;  // [block][iteration]
  std::vector<std::vector<double>> update;    // [block][iteration]
};

struct AllReduceTime {
  double bytes = 0;
  double seconds = 0;
};

struct Profile {
  std::vector<Host> hosts;
  double latency = 0;
  double inside_latency = 0;
  double inside_rate = std::numeric_limits<double>::infinity();  // not known
  std::vector<HostLink> links;
  std::vector<Shape> shapes;              // by rising peers
  std::vector<AllReduceTime> all_reduce;  // by rising bytes
  std::vector<double> blocks;             // bytes
  std::vector<Compute> compute;           // [worker]

  bool has_network() const { return !hosts.empty(); }
  bool has_compute() const { return !compute.empty(); }
  int workers() const;
};

// The network of one profile and the compute of the other. If the compute has fewer workers, they
// stand for all: worker i computes like worker i mod their number.
Profile joined(const Profile& network, const Profile& compute);

// The same model in equal blocks of at most `bytes` bytes. A piece of a block takes its part of
// that block's times.
Profile in_blocks_of(const Profile& profile, double bytes);

// Throws UsageError if the file is not a profile of this version, or half of one. The one-line
// message has file, line, mistake, and the allowed values. At most 64 MB.
Profile read_profile(const std::string& path);
Profile parse_profile(std::string_view text,
                      const std::string& name);  // `name` is the file name in messages
// The file's text. parse_profile() returns the same values to the bit.
std::string print_profile(const Profile& profile);

}  // namespace starling
