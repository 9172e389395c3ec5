// This machine's processor, memory and network, and the libraries that come with it or with torch's
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
  unsigned cores = 0;  // available to this process
  // The ones that matter for training, in the spelling of /proc/cpuinfo.
  std::vector<std::string> instructions;
  double memory_gib = 0;  // the cgroup's limit, if there is one
  double available_gib = 0;
  std::vector<Interface> interfaces;
  std::string nccl;         // versions; empty: absent
  std::string cuda_driver;  // the newest CUDA that the driver supports
};
MachineFacts machine_facts();

}  // namespace starling::cli
