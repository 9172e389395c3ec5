#include "starling/optim/other_workers.h"

#include <algorithm>
#include <set>

#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "starling/checkpoint/consensus.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/optim/state_file.h"

namespace starling {
namespace {

using Files = std::vector<const SafetensorsReader*>;

const std::string kMaster = "master.", kModel = "model.", kOptions = "options.", kLossScale = "loss_scale";

// Which tensors of a file are not the scheme's.
class Kept {
 public:
  explicit Kept(const OptimizerState& mine) : prefixes_(mine.of_rule) {
    prefixes_.insert(prefixes_.end(), {kModel, kOptions});
    for (const auto& [name, tensor] : mine.tensors) names_.insert(name);
    for (const SchemeState& of : mine.of_scheme) {
      std::erase_if(names_, [&](const std::string& name) {
        return name == of.name || name.starts_with(of.name + ".");
      });
    }
    names_.erase("rng");
  }
  bool keeps(const std::string& name) const {
    return names_.contains(name) || std::ranges::any_of(prefixes_, [&](const std::string& prefix) {
             return name.starts_with(prefix);
           });
  }

 private:
  std::set<std::string> names_;
  std::vector<std::string> prefixes_;
};

std::string share_in(const Metadata& metadata) {
  const auto found = metadata.find("share");
  return found == metadata.end() ? kWholeShare : found->second;
}

bool is_option(const std::string& name) { return name.starts_with(kOptions) || name == kLossScale; }

// Real numbers: the mean; of a tensor that a file lacks, zeros. Integers: the maximum.
at::Tensor mean_of(const std::string& name, const Files& files) {
  const auto has = [&](const SafetensorsReader* file) { return file->find(name) != nullptr; };
  const SafetensorsReader& first = **std::ranges::find_if(files, has);
  const at::Tensor mine = read_tensor(first, *first.find(name));
  if (is_option(name)) return mine;
  at::Tensor result = mine.is_floating_point() ? at::zeros(mine.sizes(), at::kDouble) : mine;
  for (const SafetensorsReader* file : files) {
    const TensorInfo* const info = file->find(name);
    if (info == nullptr) continue;
    const at::Tensor theirs = read_tensor(*file, *info);
    if (theirs.scalar_type() != mine.scalar_type() || theirs.sizes() != mine.sizes())
      throw Error(fmt::format("{}: tensor {} has not the type and shape that it has in {}", file->path(),
                              short_of(name), first.path()));
    result = mine.is_floating_point() ? result.add_(theirs) : at::maximum(result, theirs);
  }
  if (!mine.is_floating_point()) return result;
  return result.div_(static_cast<double>(files.size())).to(mine.scalar_type());
}

OptimizerState average_of(const Files& files, const Kept& kept) {
  OptimizerState state{.metadata = files.front()->metadata(), .tensors = {}};
  std::set<std::string> names;
  for (const SafetensorsReader* file : files) {
    for (const TensorInfo& info : file->tensors())
      if (kept.keeps(info.name)) names.insert(info.name);
  }
  for (const std::string& name : names) state.tensors.emplace(name, mean_of(name, files));
  // A narrow parameter is its master, rounded.
  for (auto& [name, tensor] : state.tensors) {
    if (!name.starts_with(kModel)) continue;
    const auto master = state.tensors.find(kMaster + name.substr(kModel.size()));
    if (master != state.tensors.end()) tensor = master->second.to(tensor.scalar_type());
  }
  return state;
}

}  // namespace

OptimizerState state_for(const Optimizer& optimizer, const Checkpoint& checkpoint, OtherWorkers how) {
  const c10::AutoGradMode no_gradient(false);
  const World& world = optimizer.world();
  const OptimizerState mine = optimizer.state(/*values=*/false);
  const Kept kept(mine);
  OptimizerState state;
  if (how == OtherWorkers::average) {
    const Log log = world.rank == 0 ? world.log : Log([](Level, const std::string&) {});
    const AverageModel whole(checkpoint, log);
    Files files;
    for (const SafetensorsReader& file : whole.files())
      if (share_in(file.metadata()) == share_in(mine.metadata)) files.push_back(&file);
    if (files.empty())  // set_state() says how their shares differ
      files.push_back(&whole.files().front());
    state = average_of(files, kept);
  } else {
    const auto& files = checkpoint.manifest().files;
    const auto i = static_cast<std::size_t>(world.rank) % files.size();
    const SafetensorsReader file(checkpoint.verified(files[i].worker));
    state.metadata = file.metadata();
    for (const TensorInfo& info : file.tensors())
      if (kept.keeps(info.name)) state.tensors.emplace(info.name, read_tensor(file, info));
  }
  state.tensors.insert_or_assign("rng", mine.tensors.at("rng"));
  state.scheme_anew = true;
  state.metadata["position"] = "0";
  std::erase_if(state.metadata, [](const auto& entry) { return entry.first.starts_with("grids."); });
  return state;
}

}  // namespace starling
