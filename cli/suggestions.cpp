#include "cli/suggestions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/json.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"

namespace starling::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kPrinted = 5;
constexpr const char* kSteps =
    "docs/results/planner.md#results";  // of the model's steps beside measured ones

// The keys of [mixing] that are not the defaults of a recipe.
Json keys_of(const Options& options) {
  const Options standard;
  Json keys{{"scheme", options.scheme.name}};
  if (scheme_of(options).uses_topology()) keys["topology"] = options.topology;
  if (options.wire != standard.wire) keys["wire"] = name_of(options.wire);
  const auto add = [&keys](const char* name, const auto& value, const auto& other) {
    if (value != other) keys[name] = value;
  };
  add("one_in", options.one_in, standard.one_in);
  add("every", options.every, standard.every);
  add("mean_every", options.mean_every, standard.mean_every);
  add("outer", options.outer, standard.outer);
  add("hierarchy", options.hierarchy, standard.hierarchy);
  return keys;
}

Json json_of(const std::vector<Evidence>& all) {
  Json list = Json::array();
  for (const Evidence& one : all) list.push_back({{"what", one.what}, {"where", one.where}});
  return list;
}

std::vector<std::string> texts_of(const std::vector<Evidence>& all) {
  std::vector<std::string> texts;
  for (const Evidence& one : all) texts.push_back(fmt::format("{}: {}", one.what, one.where));
  return texts;
}

void print_one(std::size_t place, const Suggestion& one) {
  const Json mixing = keys_of(one.options);
  std::vector<std::string> keys;
  for (const auto& [key, value] : mixing.items())
    keys.push_back(
        fmt::format("--mixing.{} {}", key, value.is_string() ? value.get<std::string>() : value.dump()));
  fmt::print("{}. {}\n", place, fmt::join(keys, " "));
  const auto rows = [](std::string_view name, const std::vector<std::string>& lines) {
    for (const std::string& line : lines)
      fmt::print("   {:<12}{}\n", &line == &lines.front() ? name : "", line);
  };
  rows("step",
       {fmt::format("{:.2f} x a worker's compute; {:.3g} bytes per parameter", one.step, one.memory)});
  rows("why", one.reasons);
  rows("measured", one.measured.empty() ? std::vector<std::string>{"nothing in this repository"}
                                        : texts_of(one.measured));
  rows("to measure", texts_of(one.to_measure));
  fmt::print("\n");
}

}  // namespace

void print_suggestions(const Situation& situation, bool json) {
  const Suggestions all = suggest(situation);
  if (json) {
    Json root{{"suggestions", Json::array()}, {"left_out", Json::array()}, {"steps_measured", kSteps}};
    for (const Suggestion& one : all.best)
      root["suggestions"].push_back({{"mixing", keys_of(one.options)},
                                     {"step", one.step},
                                     {"bytes_per_parameter", one.memory},
                                     {"reasons", one.reasons},
                                     {"measured", json_of(one.measured)},
                                     {"to_measure", json_of(one.to_measure)}});
    for (const LeftOut& one : all.left_out)
      root["left_out"].push_back({{"scheme", one.scheme}, {"why", one.why}});
    return print_json(root);
  }
  for (std::size_t i = 0; i < std::min(kPrinted, all.best.size()); ++i) print_one(i + 1, all.best[i]);
  if (all.best.empty()) fmt::print("No scheme suits.\n\n");
  if (all.best.size() > kPrinted) {
    std::vector<std::string> others;
    for (std::size_t i = kPrinted; i < all.best.size(); ++i)
      others.push_back(all.best[i].options.scheme.name);
    fmt::print("Also possible, in this order: {}.\n", fmt::join(others, ", "));
  }
  for (const LeftOut& one : all.left_out) fmt::print("Left out: {}: {}\n", one.scheme, one.why);
  fmt::print(
      "Steps are those of the planner's model; its error: {}. \"To measure\" names studies for starling "
      "study.\n"
      "--json prints all of it.\n",
      kSteps);
}

}  // namespace starling::cli
