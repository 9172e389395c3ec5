#include "cli/doctor_torch.h"

#include <ATen/Version.h>
#include <torch/version.h>

namespace starling::cli {

namespace {

// The value of "NAME=value," in the build settings that torch reports; empty if absent.
std::string build_setting(const std::string& config, const std::string& name) {
  const std::string key = " " + name + "=";
  const size_t at = config.find(key);
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size();
  return config.substr(begin, config.find_first_of(",\n", begin) - begin);
}

bool on(const std::string& value) { return value == "ON" || value == "1"; }

}  // namespace

TorchFacts torch_facts() {
  const std::string config = at::show_config();
  TorchFacts facts;
  facts.compiled = TORCH_VERSION;
  facts.loaded = build_setting(config, "TORCH_VERSION");
  facts.capability = at::get_cpu_capability();
  facts.cuda = on(build_setting(config, "USE_CUDA")) ? build_setting(config, "CUDA_VERSION") : "";
  facts.gloo = on(build_setting(config, "USE_GLOO"));
  facts.nccl = on(build_setting(config, "USE_NCCL"));
  return facts;
}

}  // namespace starling::cli
