#include "cli/doctor_machine.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <limits.h>
#include <link.h>
#include <net/if.h>

namespace starling::cli {

namespace {

// The value after "KEY :" in the first line of a /proc file that starts with the key.
std::string proc_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::vector<std::string> instructions() {
  const std::string x86 = proc_value("/proc/cpuinfo", "flags");
  std::istringstream words(x86.empty() ? proc_value("/proc/cpuinfo", "Features") : x86);
  std::set<std::string> present;
  for (std::string word; words >> word;) present.insert(word);
  std::vector<std::string> found;
  for (const char* name :
       {"sse4_2",   "avx",      "f16c",        "fma",         "avx2",        "avx512f",  "avx512dq",
        "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_bf16",
        "amx_int8", "asimd",    "asimdhp",     "bf16",        "sve",         "sve2"}) {
    if (present.count(name)) found.push_back(name);
  }
  return found;
}

double gib(double bytes) { return bytes / (1024.0 * 1024.0 * 1024.0); }

// The number of bytes in a file with one number; `otherwise` if there is none ("max" means no
// limit).
double bytes_in(const char* path, double otherwise) {
  double bytes = 0;
  return std::ifstream(path) >> bytes ? bytes : otherwise;
}

void read_memory(MachineFacts& facts) {
  const auto kilobytes = [](const std::string& value) {
    return value.empty() ? 0.0 : std::stod(value) * 1024;
  };
  const double total = kilobytes(proc_value("/proc/meminfo", "MemTotal"));
  const double available = kilobytes(proc_value("/proc/meminfo", "MemAvailable"));
  const double limit = std::min(total, bytes_in("/sys/fs/cgroup/memory.max", total));
  const double used = bytes_in("/sys/fs/cgroup/memory.current", 0);
  facts.memory_gib = gib(limit);
  facts.available_gib = gib(limit < total ? std::min(available, limit - used) : available);
}

std::vector<Interface> interfaces() {
  std::vector<Interface> all;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const auto known = std::ranges::find(all, entry->ifa_name, &Interface::name);
    Interface& interface = known != all.end() ? *known : all.emplace_back();
    interface.name = entry->ifa_name;
    interface.up = (entry->ifa_flags & IFF_UP) && (entry->ifa_flags & IFF_RUNNING);
    interface.loopback = entry->ifa_flags & IFF_LOOPBACK;
    if (entry->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (entry->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof(text));
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr, text, sizeof(text));
    }
    if (*text) interface.addresses.push_back(text);
  }
  freeifaddrs(list);
  return all;
}

// The result of `int symbol(int* version)` in a shared library; 0 if the library or the symbol is
// absent.
int library_version(const std::string& library, const char* symbol) {
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return 0;
  int version = 0;
  if (const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(handle, symbol))) ask(&version);
  dlclose(handle);
  return version;
}

// The folder that libtorch was loaded from. pip's nvidia packages are two folders above.
std::string torch_folder() {
  void* handle = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return "";
  char origin[PATH_MAX] = "";
  dlinfo(handle, RTLD_DI_ORIGIN, origin);
  dlclose(handle);
  return origin;
}

std::string nccl_version() {
  int version = library_version(torch_folder() + "/../../nvidia/nccl/lib/libnccl.so.2", "ncclGetVersion");
  if (version == 0) version = library_version("libnccl.so.2", "ncclGetVersion");
  if (version == 0) return "";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string cuda_driver_version() {
  const int version = library_version("libcuda.so.1", "cuDriverGetVersion");
  return version == 0 ? "" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

MachineFacts machine_facts() {
  MachineFacts facts;
  facts.processor = proc_value("/proc/cpuinfo", "model name");
  facts.cores = std::thread::hardware_concurrency();
  facts.instructions = instructions();
  read_memory(facts);
  facts.interfaces = interfaces();
  facts.nccl = nccl_version();
  facts.cuda_driver = cuda_driver_version();
  return facts;
}

}  // namespace starling::cli
