// The folder of a run. The input's parts, between zero bytes, are metrics.jsonl, tests.jsonl,
// summary.json and recipe.toml; if the first part is empty, the others are simulate.jsonl,
// cluster.json and recipe.toml.
#include "starling/train/run_folder.h"

#include <array>
#include <cmath>
#include <vector>

#include "tests/folder.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

void check_curve(const RunCurve& curve) {
  double before = 0;
  for (const RunPoint& p : curve) {
    for (const double value : {p.step, p.seconds, p.bytes})
      check(std::isfinite(value), "a point whose place is not finite");
    for (const double value : {p.value, p.least, p.most})
      check(std::isnan(value) == std::isnan(p.value) && !std::isinf(value), "a point that is infinite");
    check(p.step >= before, "steps that fall");
    before = p.step;
  }
}

}  // namespace

void read(std::string_view bytes) {
  const Folder folder;
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= bytes.size();) {
    const std::size_t end = std::min(bytes.find('\0', begin), bytes.size());
    parts.push_back(bytes.substr(begin, end - begin));
    begin = end + 1;
  }
  const std::array trained = {"metrics.jsonl", "tests.jsonl", "summary.json", "recipe.toml"};
  const std::array simulated = {"", "simulate.jsonl", "cluster.json", "recipe.toml"};
  spill(folder / "recipe.toml", "data.name = \"pictures\"\n");
  const auto& names = parts.front().empty() ? simulated : trained;
  for (std::size_t i = parts.front().empty() ? 1 : 0; i < std::min(parts.size(), names.size()); ++i)
    spill(folder / names[i], std::string(parts[i]));
  accepted([&] {
    const RunFolder run = read_run_folder(folder.path, {{"pictures", "accuracy"}});
    for (const RunCurve* curve : {&run.loss, &run.spread, &run.lr, &run.waiting_share, &run.step_bytes,
                                  &run.distance, &run.score, &run.test_loss, &run.consensus_distance})
      check_curve(*curve);
  });
}

}  // namespace starling::fuzz
