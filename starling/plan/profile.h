// What was measured of a run and of its network: `profile.json`, which a plan is made from.
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
//     "compute": [{"worker": 0, "data_wait": [..], "forward": [..], "backward": [[..], ..], "update": [[..], ..]}, ...]
//   }
//
// A profile has two halves: the network, from `hosts` to `all_reduce` (`starling probe` writes it), and the compute, `blocks`
// and `compute` (`starling train --profile-out`). A file holds one of them or both.
//
// hosts     `send` and `receive`: what the host's network interface carries each way, with all its workers at it. Every
//           worker 0 .. n-1 is on exactly one host. These and `between` may be left out where there is one host only.
// between   of any two hosts; inside: between two workers of one host, left out where no host has two
// links     the pairs of hosts that are slower or farther than this says, one way each; may be left out
// shapes    by rising number of peers with which a worker exchanges at once: what of `send` and `receive` such exchanges
//           reach with all their flows at once. A group of up to five has all others as peers. May be left out: all of it
// all_reduce  the time of one all-reduce among all workers, of several that follow each other; may be left out
// blocks    in the order in which backward() finishes them, with the bytes of their parameters in fp32
// compute   of each worker: what it spends on its own, in seconds. Entry k of every list is of the same iteration k, so that
//           what is slow together stays together; `backward` and `update` hold a list for each block
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

// One way, between hosts given by their places in the list.
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

// The network of the one and the compute of the other. Where that is of fewer workers, they stand for all: worker i computes
// as worker i mod their number.
Profile joined(const Profile& network, const Profile& compute);

// The same model in equal blocks of at most so many bytes; a piece of a block takes its part of that block's times.
Profile in_blocks_of(const Profile& profile, double bytes);

// Throws UsageError on anything that is not a profile of this version, or half of one, in one line: file, line, what, and what is
// allowed. At most 64 MB.
Profile read_profile(const std::string& path);
Profile parse_profile(std::string_view text,
                      const std::string& name);  // `name` stands for the file in messages
// The file's text. parse_profile() gives back the same to the bit.
std::string print_profile(const Profile& profile);

}  // namespace starling
