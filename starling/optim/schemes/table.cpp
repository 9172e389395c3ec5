#include "starling/optim/schemes/table.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/kernels/wire.h"

namespace starling {

std::vector<std::string> scheme_names() {
  std::vector<std::string> names;
  for (const SchemeInfo* const info : schemes()) names.emplace_back(info->name);
  return names;
}

const SchemeInfo& scheme_info(const std::string& name) {
  const auto found = std::ranges::find(schemes(), name, &SchemeInfo::name);
  if (found != schemes().end()) return **found;
  const std::vector<std::string> names = scheme_names();
  throw UsageError(
      fmt::format("scheme \"{}\" is unknown{}: {}", name, did_you_mean(name, names), fmt::join(names, ", ")));
}

std::vector<std::string_view> wires_of(const SchemeInfo& info) {
  std::vector<std::string_view> names;
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8, Wire::int4}) {
    if (std::ranges::count(info.traits.refused_wires, wire, &RefusedWire::wire) == 0)
      names.push_back(name_of(wire));
  }
  return names;
}

SchemeChoice::SchemeChoice() : name(schemes().front()->name) {}

std::vector<SharedOption> scheme_options() {
  std::vector<SharedOption> all;
  for (const SchemeInfo* const info : schemes()) {
    for (const SchemeOption& option : info->options) {
      auto known = std::ranges::find(all, option.name, [](const SharedOption& o) { return o.option->name; });
      if (known == all.end()) known = all.insert(all.end(), {&option, {}});
      known->schemes.emplace_back(info->name);
    }
  }
  return all;
}

}  // namespace starling
