// starling checkpoint show DIR: verifies all files of a checkpoint, then describes it. starling
// checkpoint consensus DIR OUT.safetensors: the average model of all its workers.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/workers.h"
#include "starling/checkpoint/consensus.h"
#include "starling/checkpoint/manifest_json.h"
#include "starling/core/input.h"
#include "starling/core/text.h"

namespace starling::cli {

namespace {

struct CheckpointOptions {
  std::string folder;
  std::string out;
  bool json = false;
};

void print_table(const Checkpoint& checkpoint) {
  const Manifest& m = checkpoint.manifest();
  fmt::print("{}: step {}, {} worker{}, {:.1f} s of training\n\n", printable(checkpoint.folder()), m.step,
             m.workers, m.workers == 1 ? "" : "s", m.seconds);
  if (!m.before.empty()) {
    std::vector<std::string> parts;
    for (const EarlierWorkers& earlier : m.before)
      parts.push_back(fmt::format("{}{} until step {}", earlier.steps.size(), parts.empty() ? " workers" : "",
                                  earlier.step));
    fmt::print("before: {}\n\n", fmt::join(parts, ", "));
  }
  fmt::print("{:<28}{:>10}{:>14}  crc32c\n", "file", "step", "bytes");
  for (const WorkerFile& file : m.files) {
    fmt::print("{:<28}{:>10}{:>14}  {:08x}\n", file.name(), file.step, file.digest.bytes, file.digest.crc32c);
  }
  const auto gone = static_cast<std::size_t>(m.workers) - m.files.size();
  fmt::print("\nall checksums agree{}\n",
             gone == 0 ? "" : fmt::format("; {} of the workers had been lost", gone));
  if (!m.recipe.empty()) fmt::print("\n");
  for (const auto& [key, value] : m.recipe) fmt::print("{:<28}{}\n", printable(key), printable(value));
}

void print_as_json(const Checkpoint& checkpoint) {
  const Manifest& m = checkpoint.manifest();
  const nlohmann::ordered_json manifest = manifest_json(m);
  print_json({{"folder", checkpoint.folder()},
              {"step", m.step},
              {"workers", m.workers},
              {"seconds", m.seconds},
              {"verified", true},  // an unverified one ends earlier
              {"files", manifest["files"]},
              {"before", manifest.value("before", nlohmann::ordered_json::array())},
              {"recipe", manifest["recipe"]}});
}

int show(const CheckpointOptions& options) {
  const Checkpoint checkpoint = named_input([&] { return Checkpoint(options.folder); });
  named_input([&] { checkpoint.verify_all(); });
  options.json ? print_as_json(checkpoint) : print_table(checkpoint);
  return 0;
}

int consensus(const CheckpointOptions& options) {
  const Checkpoint checkpoint = named_input([&] { return Checkpoint(options.folder); });
  const AverageModel model = named_input([&] { return AverageModel(checkpoint, warn_to_stderr); });
  write_consensus(model, options.out);
  fmt::print("{}: the average of {} workers after step {}\n", printable(options.out), model.workers(),
             checkpoint.manifest().step);
  return 0;
}

}  // namespace

void add_checkpoint(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("checkpoint", "Describe a checkpoint, or extract its average model");
  sub->require_subcommand(1);
  auto options = std::make_shared<CheckpointOptions>();
  const auto add = [&](const char* name, const char* help, const char* example,
                       int (*run)(const CheckpointOptions&)) {
    CLI::App* each = sub->add_subcommand(name, help);
    each->footer(example);
    each->add_option("folder", options->folder,
                     "the checkpoint, or a folder of several, which means the latest")
        ->type_name("DIR")
        ->required();
    each->callback([options, run, &command] { command = [options, run] { return run(*options); }; });
    return each;
  };
  const char* const kShow = "  starling checkpoint show out/run/checkpoints";
  const char* const kConsensus =
      "  starling checkpoint consensus out/run/checkpoints out/run/model.safetensors";
  sub->footer(fmt::format("{}\n{}", kShow, kConsensus));
  add("show", "Verify all files and describe the checkpoint", kShow, show)
      ->alias("verify")
      ->add_flag("--json", options->json, "print JSON instead of a table");
  add("consensus", "Write the average model of all workers as a safetensors file", kConsensus, consensus)
      ->add_option("out", options->out, "output file")
      ->type_name("OUT.safetensors")
      ->required();
}

}  // namespace starling::cli
