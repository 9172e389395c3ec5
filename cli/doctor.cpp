// starling doctor: the versions that run here, the machine's equipment, and whether they fit each
// other.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gloo/config.h>
#include <openssl/crypto.h>

#include "cli/commands.h"
#include "cli/doctor_machine.h"
#include "cli/doctor_torch.h"
#include "cli/json.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/kernels/cuda/compiler.h"
#include "starling/kernels/update.h"
#include "starling/transport/mapped/arena.h"
#include "starling/world/environment.h"

namespace starling::cli {

namespace {

struct Versions {
  std::string compiler;
  std::string openssl_compiled;
  std::string openssl_loaded;
  std::string gloo_headers;
};

Versions versions() {
#if defined(__clang__)
  const std::string compiler = "Clang " __clang_version__;
#else
  const std::string compiler = "GCC " __VERSION__;
#endif
  return {compiler,
          fmt::format("{}.{}.{}", OPENSSL_VERSION_MAJOR, OPENSSL_VERSION_MINOR, OPENSSL_VERSION_PATCH),
          fmt::format("{}.{}.{}", OPENSSL_version_major(), OPENSSL_version_minor(), OPENSSL_version_patch()),
          fmt::format("{}.{}.{}", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH)};
}

struct Check {
  std::string name;
  bool ok;
  std::string message;
};

Check check_torch(const TorchFacts& torch) {
  if (torch.compiled == torch.loaded) return {"torch", true, "headers and library are both " + torch.loaded};
  return {"torch", false,
          fmt::format("compiled with the headers of {}, but {} is loaded: build again, or use torch {}",
                      torch.compiled, torch.loaded, torch.compiled)};
}

Check check_gloo(const TorchFacts& torch) {
  if (torch.gloo) return {"Gloo", true, "part of this torch"};
  return {"Gloo", false, "this torch was built without it: no scheme all-reduce and no hierarchy"};
}

Check check_openssl(const Versions& v) {
  // 0xMNN00PP0: the major version must be the same, and the minor version not older.
  constexpr unsigned long compiled = OPENSSL_VERSION_NUMBER;
  const unsigned long loaded = OpenSSL_version_num();
  if (loaded >> 28 == compiled >> 28 && loaded >> 20 >= compiled >> 20) {
    return {"OpenSSL", true,
            fmt::format("{} is compatible with {}, for which this was compiled", v.openssl_loaded,
                        v.openssl_compiled)};
  }
  return {"OpenSSL", false,
          fmt::format("compiled for {}, but {} is loaded, which is not compatible", v.openssl_compiled,
                      v.openssl_loaded)};
}

// torch picks the best instruction set of its build. The processor's instruction sets are known
// here too.
Check check_instructions(const TorchFacts& torch, const MachineFacts& machine) {
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::ranges::all_of(
        names, [&](const char* name) { return std::ranges::count(machine.instructions, name) > 0; });
  };
  std::string best = torch.capability;  // not x86: no comparison
  if (has({"avx2", "fma"})) best = "AVX2";
  if (has({"avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl"})) best = "AVX512";
  if (torch.capability == best) return {"instructions", true, "torch uses " + best};
  const char* forced = std::getenv("ATEN_CPU_CAPABILITY");
  return {"instructions", false,
          fmt::format("torch uses {} though the processor has {}{}", torch.capability, best,
                      forced ? fmt::format(": ATEN_CPU_CAPABILITY is set to {}", forced) : "")};
}

Check check_kernels() {
  try {
    std::vector<std::string_view> all;
    for (const kernels::Kernels& one : kernels::supported_kernels()) all.push_back(one.isa);
    return {"kernels", true, fmt::format("{}, of {}", kernels::best_kernels().isa, fmt::join(all, ", "))};
  } catch (const UsageError& wrong) {
    return {"kernels", false, wrong.what()};
  }
}

Check check_cuda(const TorchFacts& torch, const MachineFacts& machine) {
  if (torch.cuda.empty()) return {"CUDA", true, "this torch is built for the CPU only"};
  if (machine.cuda_driver.empty()) {
    return {"CUDA", true,
            fmt::format("torch is built for {}, no NVIDIA driver here: the CPU is used", torch.cuda)};
  }
  if (std::stoi(machine.cuda_driver) >= std::stoi(torch.cuda)) {
    return {"CUDA", true,
            fmt::format("torch is built for {}, the driver runs {}", torch.cuda, machine.cuda_driver)};
  }
  return {"CUDA", false,
          fmt::format("torch is built for {}, but the driver runs {} at most: a newer driver is needed",
                      torch.cuda, machine.cuda_driver)};
}

// Whether the update compiles for GPUs. The result is cached, so this takes seconds only once.
Check check_nvrtc(const MachineFacts& machine) {
  constexpr int kTried = 80;
  try {
    const auto nvrtc = kernels::cuda::try_compiler(kTried);
    if (!nvrtc) return {"NVRTC", machine.cuda_driver.empty(), "absent: nothing compiles the update for GPUs"};
    return {"NVRTC", true,
            fmt::format("{} compiles the update for sm_{}, and has sm_{}; nothing runs on a GPU yet",
                        nvrtc->version, kTried, fmt::join(nvrtc->architectures, " "))};
  } catch (const Error& wrong) {
    return {"NVRTC", false, wrong.what()};
  }
}

Check check_nccl(const TorchFacts& torch, const MachineFacts& machine) {
  if (!machine.nccl.empty()) return {"NCCL", true, machine.nccl + " can be loaded"};
  if (torch.nccl && !machine.cuda_driver.empty()) {
    return {"NCCL", false,
            "torch is built with it, but libnccl.so.2 cannot be loaded: install torch's nvidia packages"};
  }
  return {"NCCL", true, "absent, not needed on the CPU"};
}

Check check_memory(const MachineFacts& machine) {
  constexpr double least = 1;
  return {"memory", machine.available_gib >= least,
          fmt::format("{:.1f} GiB available, at least {} GiB is needed", machine.available_gib, least)};
}

Check check_shared_memory() {
  constexpr std::size_t kBytes = 1 << 20;
  mapped::Arena arena(kBytes);
  if (arena.make(kBytes))
    return {"sharing", true, "workers on this machine read each other's blocks in shared memory"};
  return {"sharing", true,
          fmt::format("no shared memory ({}): blocks go over TCP within this machine too", arena.trouble())};
}

Check check_network(const MachineFacts& machine) {
  std::vector<std::string> outside;
  bool loopback = false;
  for (const Interface& interface : machine.interfaces) {
    if (!interface.up || interface.addresses.empty()) continue;
    if (interface.loopback) {
      loopback = true;
    } else {
      outside.push_back(interface.name);
    }
  }
  if (!loopback)
    return {"network", false, "no loopback interface is up: local workers cannot reach each other"};
  if (outside.empty()) return {"network", true, "loopback only: workers on this machine"};
  return {"network", true, fmt::format("loopback, and {} for other machines", fmt::join(outside, ", "))};
}

// The world that a worker would join if it were started like this command.
Check check_launcher() {
  try {
    const std::optional<Launch> launch = read_launch(process_variables());
    if (!launch) return {"launcher", true, "none: one worker alone, unless train --workers starts more"};
    return {"launcher", true,
            fmt::format("{}: rank {} of {}, {} on this host, they meet at {} port {}", launch->launcher,
                        launch->rank, launch->size, launch->local_size, launch->host, launch->port)};
  } catch (const UsageError& wrong) {
    return {"launcher", false, wrong.what()};
  }
}

std::string or_absent(const std::string& version) { return version.empty() ? "absent" : version; }

void print_text(const Versions& v, const TorchFacts& torch, const MachineFacts& machine,
                const std::vector<Check>& checks) {
  const auto line = [](const char* name, const std::string& value) {
    fmt::print("  {:<14}{}\n", name, value);
  };
  fmt::print("versions\n");
  line("starling", STARLING_VERSION);
  line("compiler", v.compiler);
  line("torch", fmt::format("{} (headers {})", torch.loaded, torch.compiled));
  line("Gloo", torch.gloo ? fmt::format("in torch (headers {})", v.gloo_headers) : "absent");
  line("CUDA", fmt::format("{} in torch, driver {}", or_absent(torch.cuda), or_absent(machine.cuda_driver)));
  line("NCCL", or_absent(machine.nccl));
  line("OpenSSL", fmt::format("{} (headers {})", v.openssl_loaded, v.openssl_compiled));
  fmt::print("machine\n");
  line("processor", machine.processor.empty() ? "unknown" : machine.processor);
  line("cores", fmt::format("{}", machine.cores));
  line("memory", fmt::format("{:.1f} GiB, {:.1f} GiB available", machine.memory_gib, machine.available_gib));
  line("instructions",
       fmt::format("{} (torch uses {})", fmt::join(machine.instructions, " "), torch.capability));
  for (const Interface& interface : machine.interfaces) {
    line(&interface == &machine.interfaces.front() ? "network" : "",
         fmt::format("{} {}{}", interface.name, fmt::join(interface.addresses, " "),
                     interface.up ? "" : " (down)"));
  }
  fmt::print("checks\n");
  for (const Check& check : checks) {
    fmt::print("  {:<9}{:<14}{}\n", check.ok ? "ok" : "problem", check.name, printable(check.message));
  }
}

void print_as_json(const Versions& v, const TorchFacts& torch, const MachineFacts& machine,
                   const std::vector<Check>& checks, bool ok) {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  Json interfaces = Json::array();
  for (const Interface& interface : machine.interfaces) {
    interfaces.push_back({{"name", interface.name},
                          {"addresses", interface.addresses},
                          {"up", interface.up},
                          {"loopback", interface.loopback}});
  }
  Json results = Json::array();
  for (const Check& check : checks) {
    results.push_back({{"name", check.name}, {"ok", check.ok}, {"message", check.message}});
  }
  const Json all = {
      {"versions",
       {{"starling", STARLING_VERSION},
        {"compiler", v.compiler},
        {"torch", torch.loaded},
        {"torch_headers", torch.compiled},
        {"gloo_headers", v.gloo_headers},
        {"cuda", or_null(torch.cuda)},
        {"cuda_driver", or_null(machine.cuda_driver)},
        {"nccl", or_null(machine.nccl)},
        {"openssl", v.openssl_loaded},
        {"openssl_headers", v.openssl_compiled}}},
      {"machine",
       {{"processor", or_null(machine.processor)},
        {"cores", machine.cores},
        {"memory_gib", machine.memory_gib},
        {"available_gib", machine.available_gib},
        {"instructions", machine.instructions},
        {"torch_uses", torch.capability},
        {"interfaces", std::move(interfaces)}}},
      {"checks", std::move(results)},
      {"ok", ok},
  };
  print_json(all);
}

int doctor(bool json) {
  const Versions v = versions();
  const TorchFacts torch = torch_facts();
  const MachineFacts machine = machine_facts();
  const std::vector<Check> checks = {check_torch(torch),     check_gloo(torch),
                                     check_openssl(v),       check_instructions(torch, machine),
                                     check_kernels(),        check_cuda(torch, machine),
                                     check_nvrtc(machine),   check_nccl(torch, machine),
                                     check_memory(machine),  check_shared_memory(),
                                     check_network(machine), check_launcher()};
  const bool ok = std::ranges::all_of(checks, &Check::ok);
  json ? print_as_json(v, torch, machine, checks, ok) : print_text(v, torch, machine, checks);
  return ok ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand(
      "doctor", "Show the versions and the machine's equipment, and check that they fit each other");
  sub->footer("  starling doctor");
  auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "print JSON instead of text");
  sub->callback([json, &command] { command = [json] { return doctor(*json); }; });
}

}  // namespace starling::cli
