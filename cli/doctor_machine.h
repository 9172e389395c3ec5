// What this machine has: processor, memory, network, and the libraries that come with it or with torch's
// wheel.
#pragma once

#include <string>
#include <vector>

namespace starling::cli {

struct Interface {
  std::string name;
  std::vector<std::string> addresses;
  bool up = false;
  bool loopback = false;
};

struct MachineFacts {
  std::string processor;
  unsigned cores = 0;                     // that this process may use
  std::vector<std::string> instructions;  // those that matter for training, as /proc/cpuinfo spells them
  double memory_gib = 0;                  // the cgroup's limit where there is one
  double available_gib = 0;
  std::vector<Interface> interfaces;
  std::string nccl;         // versions; empty: absent
  std::string cuda_driver;  // the newest CUDA that the driver runs
};
MachineFacts machine_facts();

}  // namespace starling::cli
