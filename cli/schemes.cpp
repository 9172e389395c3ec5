// starling schemes: the list of schemes, and the options of each. Its output is the source of the
// documents, and of the types of Python's keyword arguments. --for: the schemes for a situation.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/suggestions.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"
#include "starling/optim/sent_size.h"

namespace starling::cli {

namespace {

struct SchemesOptions {
  std::string name;
  bool markdown = false, python = false, cpp = false;
  bool choose = false, json = false;
  Situation situation;
  std::string skew = "none";
};

const std::vector<std::string> kSkews{"none", "some", "strong"};  // as Skew

// The flags that say for what --for chooses.
void add_situation(CLI::App& sub, SchemesOptions& options, CLI::Option* choose) {
  Situation& in = options.situation;
  const auto add = [&](const std::string& name, auto& value, const char* type, const std::string& help) {
    return sub.add_option(name, value, help)->type_name(type)->needs(choose);
  };
  const auto flag = [&](const std::string& name, bool& value, const std::string& help) {
    sub.add_flag(name, value, help)->needs(choose);
  };
  add("--workers", in.workers, "N", "number of workers")->capture_default_str();
  add("--workers-per-node", in.workers_per_node, "L", "workers per node, which share its link")
      ->capture_default_str();
  add("--link-over-compute", in.link_over_compute, "X",
      "time to send the parameters once in fp32 over the link, over the compute of a step")
      ->capture_default_str();
  add("--straggler", in.straggler, "X", "worker 0 takes X times as long")->capture_default_str();
  add("--skew", options.skew, "HOW", "how much the workers' data differ: none, some or strong")
      ->check(CLI::IsMember(kSkews))
      ->capture_default_str();
  flag("--failures", in.failures, "workers may die, and the others must go on");
  flag("--directed", in.directed, "links carry data in one direction");
  flag("--gpu", in.gpu, "the parameters are on GPUs");
  add("--memory", in.memory, "BYTES", "bytes per parameter that mixing may take (default: any number)");
  add("--rule", in.rule, "NAME", "optimizer.rule of a recipe, or other for one that is not Starling's");
  add("--topology", in.topology, "NAME", "topology that the network allows (default: the planner's choice)");
  flag("--json", options.json, "print JSON");
}

constexpr std::pair<Path, const char*> kPathTexts[] = {
    {Path::ahead, "sent ahead: hidden behind the next iteration"},
    {Path::inside, "inside the step"},
    {Path::pairs, "in pairs, beside training"},
    {Path::gradients, "gradients, inside backward()"}};
constexpr std::pair<EdgeKind, const char*> kEdgeTexts[] = {
    {EdgeKind::symmetric, "topologies that average"},
    {EdgeKind::lasting, "topologies of one round, each edge in both directions"},
    {EdgeKind::directed, "directed topologies too"},
    {EdgeKind::own, "rounds of its own"},
    {EdgeKind::none, "no neighbours"}};

const char* path_text(const SchemeInfo& info) {
  return std::ranges::find(kPathTexts, info.traits.path, [](const auto& row) { return row.first; })->second;
}
const char* edges_text(const SchemeInfo& info) {
  return std::ranges::find(kEdgeTexts, info.traits.edges, [](const auto& row) { return row.first; })->second;
}

constexpr int kFew = 64;  // one_in of an example

// The bytes of an exchange with one neighbour, over those of the parameters in fp32.
double share_of(const SchemeInfo& info, Wire wire, int one_in) {
  const Options options{.topology = info.traits.edges == EdgeKind::lasting ? "ring" : "base-2",
                        .scheme = std::string(info.name),
                        .wire = wire,
                        .one_in = one_in};
  const Block block = typical_block();
  return sent_size(block, schedule_of(options, 2, 1), options).block /
         static_cast<double>(bytes_of(Wire::fp32, 1)) / static_cast<double>(block.length);
}

// For tables: "1", "2; one_in = 64: 0.0312".
std::string sends_text(const SchemeInfo& info) {
  if (info.traits.path == Path::gradients) return "2 (n - 1) / n";
  if (info.traits.edges == EdgeKind::none) return "nothing between two means";
  std::string text = fmt::format("{:.3g}", share_of(info, Wire::fp32, 1));
  if (info.traits.all_values.empty())
    text += fmt::format("; one_in = {}: {:.3g}", kFew, share_of(info, Wire::fp32, kFew));
  return text;
}

// For the description of one.
std::string sends_row(const SchemeInfo& info) {
  const SchemeTraits& traits = info.traits;
  if (traits.path == Path::gradients) return "2 (n - 1) / n x the parameters in fp32, in each step";
  if (traits.edges == EdgeKind::none) return sends_text(info);
  const auto refuses = [&](Wire wire) {
    return std::ranges::count(traits.refused_wires, wire, &RefusedWire::wire) > 0;
  };
  std::string text = fmt::format("{:.3g} x the parameters in fp32", share_of(info, Wire::fp32, 1));
  for (const Wire wire : {Wire::bf16, Wire::int8, Wire::int4}) {
    if (!refuses(wire)) text += fmt::format(", {:.3g} over {}", share_of(info, wire, 1), name_of(wire));
  }
  if (traits.all_values.empty())
    text += fmt::format(", {:.3g} with one_in = {}", share_of(info, Wire::fp32, kFew), kFew);
  text += traits.path == Path::pairs ? "; in each averaging" : "; to each neighbour of a round";
  if (traits.wire_values != nullptr) text += fmt::format("; for matrices of {0} x {0}", kTypicalSide);
  return text;
}

std::string type_of(const SchemeOption& option) {
  const auto standard = default_of(option);
  if (!standard || std::holds_alternative<double>(*standard)) return "number";
  return std::holds_alternative<std::int64_t>(*standard) ? "whole number" : "text";
}

void print_one(const SchemeInfo& info) {
  const SchemeTraits& traits = info.traits;
  fmt::print("{}\n  {}\n  {}\n\n", info.name, info.summary, info.paper);
  const auto row = [](std::string_view name, const std::string& text) {
    fmt::print("  {:<12}{}\n", name, text);
  };
  row("exchange", path_text(info));
  row("edges", edges_text(info));
  row("wires", fmt::format("{}", fmt::join(wires_of(info), ", ")));
  row("one_in", traits.all_values.empty() ? "any" : fmt::format("1: {}", traits.all_values));
  row("sends", sends_row(info));
  row("optimizer", traits.own_rule.empty() ? "any" : fmt::format("Starling's rules: {}", traits.own_rule));
  row("local steps", traits.local_steps ? "any: mixing.every" : "none");
  row("outer", traits.takes_outer ? "after each exchange" : info.takes_means() ? "after each mean" : "none");
  row("GPU", traits.on_host ? "yes: its exchange is computed on the host" : "yes");
  row("skewed data", traits.exact ? "exact with a constant learning rate"
                                  : "off by a distance that falls with the learning rate");
  row("a death", info.advice.when_one_dies.empty() ? "the others go on, with its weight on themselves"
                                                   : std::string(info.advice.when_one_dies));
  row("a join", traits.path == Path::gradients ? "not possible"
                : traits.at_a_join.empty()     ? "all go on: it has no state of its own"
                                               : std::string(traits.at_a_join));
  row("hierarchy", info.make_in_nodes != nullptr ? "yes" : "no");
  for (const SchemeOption& option : info.options) {
    fmt::print("\n  {}: {}", option.name, type_of(option));
    if (const std::string allowed = allowed_text(option); !allowed.empty()) fmt::print(", {}", allowed);
    fmt::print(", default {}\n    {}\n", default_text(option), option.meaning);
  }
}

void print_markdown() {
  fmt::print("| scheme | what it does | exchange | edges | sends | wires | paper |\n|-|-|-|-|-|-|-|\n");
  for (const SchemeInfo* const info : schemes()) {
    const auto wires = wires_of(*info);
    fmt::print("| `{}` | {} | {} | {} | {} | {} | {} |\n", info->name, info->summary, path_text(*info),
               edges_text(*info), sends_text(*info),
               wires.size() == 5 ? "all" : fmt::format("{}", fmt::join(wires, ", ")), info->paper);
  }
  fmt::print("\n| option | of | default | allowed | meaning |\n|-|-|-|-|-|\n");
  for (const SharedOption& shared : scheme_options())
    fmt::print("| `{}` | {} | {} | {} | {} |\n", shared.option->name, fmt::join(shared.schemes, ", "),
               default_text(*shared.option), allowed_text(*shared.option), shared.option->meaning);
}

// The types of the keyword arguments of Python's optimizers, as a module.
void print_python() {
  fmt::print(
      "\"\"\"Made from `starling schemes --python`.\"\"\"\n\nfrom typing import TypedDict\n\n\n"
      "class SchemeOptions(TypedDict, total=False):\n"
      "    \"\"\"How workers mix: the scheme, and the options that some schemes have.\"\"\"\n\n"
      "    scheme: str\n    \"\"\"\n");
  for (const SchemeInfo* const info : schemes())
    fmt::print("    - \"{}\"{}: {}\n", info->name, info == schemes().front() ? " (default)" : "",
               info->summary);
  fmt::print("    \"\"\"\n");
  for (const SharedOption& shared : scheme_options()) {
    const SchemeOption& option = *shared.option;
    const std::string type = type_of(option);
    fmt::print("    {}: {}{}\n", option.name,
               type == "number"         ? "float"
               : type == "whole number" ? "int"
                                        : "str",
               option.is_automatic() ? " | None" : "");
    const std::string standard =
        option.is_automatic() ? fmt::format("None (default): {}", std::get<Automatic>(option.standard).how)
                              : default_text(option) + " (default)";
    fmt::print("    \"\"\"Of {}: {}. {}{}.\"\"\"\n", fmt::join(shared.schemes, ", "), option.meaning,
               standard, allowed_text(option).empty() ? "" : "; " + allowed_text(option));
  }
}

// "some-name-2" as SomeName2.
std::string type_name(std::string_view name) {
  std::string type;
  bool upper = true;
  for (const char c : name) {
    if (c != '-') type += upper ? static_cast<char>(std::toupper(c)) : c;
    upper = c == '-';
  }
  return type;
}

void print_cpp_option(const SchemeOption& option) {
  const auto standard = default_of(option);
  const std::string type = type_of(option);
  const std::string cpp = type == "number" ? "double" : type == "text" ? "std::string" : "std::int64_t";
  const std::string value =
      type == "text" ? fmt::format("\"{}\"", value_text(standard)) : value_text(standard);
  fmt::print("  // {}{}{}.\n", option.meaning, standard ? "" : "; " + default_text(option),
             allowed_text(option).empty() ? "" : "; " + allowed_text(option));
  if (standard) {
    fmt::print("  {} {} = {};\n", cpp, option.name, value);
  } else {
    fmt::print("  std::optional<{}> {}{{}};\n", cpp, option.name);
  }
}

// Each scheme as a type, so that the compiler checks names and types of its options.
void print_cpp() {
  fmt::print(R"(// Made from `starling schemes --cpp`: {{.scheme = starling::scheme::Choco{{.gamma = 0.5}}}}.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "starling/optim/scheme_choice.h"

namespace starling::scheme {{
)");
  for (const SchemeInfo* const info : schemes()) {
    fmt::print("\n// {}.\nstruct {} {{\n", info->summary, type_name(info->name));
    for (const SchemeOption& option : info->options) print_cpp_option(option);
    fmt::print("  operator SchemeChoice() const {{\n    SchemeChoice choice(\"{}\");\n", info->name);
    for (const SchemeOption& option : info->options) {
      fmt::print("    {0}choice.options.emplace_back(\"{1}\", {2}{1});\n",
                 option.is_automatic() ? fmt::format("if ({}) ", option.name) : "", option.name,
                 option.is_automatic() ? "*" : "");
    }
    fmt::print("    return choice;\n  }}\n}};\n");
  }
  fmt::print("\n}}  // namespace starling::scheme\n");
}

int run(const SchemesOptions& options) {
  if (options.choose) {
    Situation situation = options.situation;
    situation.skew = static_cast<Skew>(std::ranges::find(kSkews, options.skew) - kSkews.begin());
    print_suggestions(situation, options.json);
  } else if (options.cpp) {
    print_cpp();
  } else if (options.python) {
    print_python();
  } else if (options.markdown) {
    print_markdown();
  } else if (!options.name.empty()) {
    print_one(scheme_info(options.name));
  } else {
    for (const SchemeInfo* const info : schemes()) fmt::print("{:<18} {}\n", info->name, info->summary);
    fmt::print("\n`starling schemes NAME` lists the options of one.\n");
  }
  return 0;
}

}  // namespace

void add_schemes(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("schemes", "List the schemes, or one with its options");
  sub->footer("  starling schemes choco\n  starling schemes --for --workers 16 --skew strong");
  auto options = std::make_shared<SchemesOptions>();
  auto* const name =
      sub->add_option("name", options->name, "Scheme to describe; default: all of them, a line each")
          ->type_name("NAME");
  auto* const markdown =
      sub->add_flag("--markdown", options->markdown, "Print the tables of docs/schemes.md");
  auto* const python =
      sub->add_flag("--python", options->python, "Print the types of Python's keyword arguments")
          ->excludes(markdown);
  auto* const cpp = sub->add_flag("--cpp", options->cpp, "Print the header starling/optim/schemes.h")
                        ->excludes(markdown)
                        ->excludes(python);
  auto* const choose =
      sub->add_flag("--for", options->choose, "Suggest schemes for the situation that the next options name")
          ->excludes(markdown)
          ->excludes(python)
          ->excludes(cpp)
          ->excludes(name);
  add_situation(*sub, *options, choose);
  sub->callback([options, &command] { command = [options] { return run(*options); }; });
}

}  // namespace starling::cli
