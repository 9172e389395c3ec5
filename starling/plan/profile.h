// What was measured of a run and of its network: `profile.json`, which a plan is made from.
//
//   {
//     "format": "starling-profile", "version": 1,
//     "units": {"time": "s", "data": "B", "rate": "B/s"},
//     "hosts": [{"name": "a", "workers": [0, 1], "send": 1.2e9, "receive": 1.2e9}, ...],
//     "between": {"latency": 5e-5},
//     "inside": {"latency": 2e-6, "rate": 8e9},
//     "links": [{"from": "a", "to": "b", "latency": 9e-5, "rate": 3e8}],
//     "blocks": [{"bytes": 26214400}, ...],
//     "compute": [{"worker": 0, "data_wait": [..], "forward": [..], "backward": [[..], ..], "update": [[..], ..]}, ...],
//     "all_reduce": [{"bytes": 26214400, "seconds": 0.04}, ...]
//   }
//
// hosts     `send` and `receive`: what the host's network interface carries each way, with all its workers at it. Every
//           worker 0 .. n-1 is on exactly one host.
// between   of any two hosts; inside: between two workers of one host
// links     the pairs of hosts that are slower or farther than this says, one way each; may be left out
// blocks    in the order in which backward() finishes them, with the bytes of their parameters in fp32
// compute   of each worker: what it spends on its own, in seconds. Entry k of every list is of the same iteration k, so that
//           what is slow together stays together; `backward` and `update` hold a list for each block
// all_reduce  the time of one all-reduce among all workers; may be left out
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace starling {

struct Host {
  std::string name;
  std::vector<int> workers;
  double send = 0;
  double receive = 0;
};

// One way, between hosts given by their places in the list.
struct HostLink {
  int from = 0;
  int to = 0;
  double latency = 0;
  double rate = 0;
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
  double inside_rate = 0;
  std::vector<HostLink> links;
  std::vector<double> blocks;             // bytes
  std::vector<Compute> compute;           // [worker]
  std::vector<AllReduceTime> all_reduce;  // by rising bytes

  int workers() const { return static_cast<int>(compute.size()); }
};

// Throws UsageError on anything that is not a whole profile of this version, in one line: file, line, what, and what is
// allowed. At most 64 MB.
Profile read_profile(const std::string& path);
Profile parse_profile(std::string_view text,
                      const std::string& name);  // `name` stands for the file in messages
// The file's text. parse_profile() gives back the same to the bit.
std::string print_profile(const Profile& profile);

}  // namespace starling
