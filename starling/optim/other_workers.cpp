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
#include "starling/optim/finite.h"
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

// Real numbers: the mean; of a tensor that a file lacks, zeros. A file with one that is not finite
// is left out of it, unless all are so. Integers: the maximum.
at::Tensor mean_of(const std::string& name, const Files& files) {
  const auto has = [&](const SafetensorsReader* file) { return file->find(name) != nullptr; };
  const SafetensorsReader& first = **std::ranges::find_if(files, has);
  const at::Tensor mine = read_tensor(first, *first.find(name));
  if (is_option(name)) return mine;
  at::Tensor result = mine.is_floating_point() ? at::zeros(mine.sizes(), at::kDouble) : mine;
  std::size_t counted = files.size();
  for (const SafetensorsReader* file : files) {
    const TensorInfo* const info = file->find(name);
    if (info == nullptr) continue;
    const at::Tensor theirs = read_tensor(*file, *info);
    if (theirs.scalar_type() != mine.scalar_type() || theirs.sizes() != mine.sizes())
      throw Error(fmt::format("{}: tensor {} has not the type and shape that it has in {}", file->path(),
                              short_of(name), first.path()));
    if (!is_finite(theirs) && --counted > 0) continue;
    result = mine.is_floating_point() ? result.add_(theirs) : at::maximum(result, theirs);
  }
  if (!mine.is_floating_point()) return result;
  return result.div_(static_cast<double>(std::max<std::size_t>(counted, 1))).to(mine.scalar_type());
}

// The state in a worker's file.
OptimizerState state_in(const std::string& path, const Kept& kept) {
  const SafetensorsReader file(path);
  OptimizerState state{.metadata = file.metadata(), .tensors = {}};
  for (const TensorInfo& info : file.tensors())
    if (kept.keeps(info.name)) state.tensors.emplace(info.name, read_tensor(file, info));
  return state;
}

// Whether a tensor of the model is finite in this file, and not in that state.
bool is_worse(const OptimizerState& state, const std::string& path) {
  const SafetensorsReader file(path);
  return std::ranges::any_of(state.tensors, [&](const auto& entry) {
    const auto& [name, tensor] = entry;
    if (!name.starts_with(kModel) || is_finite(tensor)) return false;
    const TensorInfo* const there = file.find(name);
    return there != nullptr && is_finite(read_tensor(file, *there));
  });
}

// Worker r takes the file r mod n, or the next one with a model that is finite. A buffer may be
// infinite on purpose, as a mask is: then it is so in all files.
OptimizerState copy_of(const Checkpoint& checkpoint, int rank, const Kept& kept) {
  const auto& files = checkpoint.manifest().files;
  const auto file = [&](std::size_t k) { return files[(static_cast<std::size_t>(rank) + k) % files.size()]; };
  const auto state_of = [&](std::size_t k) { return state_in(checkpoint.verified(file(k).worker), kept); };
  OptimizerState state = state_of(0);
  const auto is_sound = [&] {
    return std::ranges::all_of(state.tensors, [](const auto& entry) {
      return !entry.first.starts_with(kModel) || is_finite(entry.second);
    });
  };
  for (std::size_t k = 1; k < files.size() && !is_sound(); ++k) {
    if (is_worse(state, checkpoint.folder() + "/" + file(k).name())) state = state_of(k);
  }
  return state;
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
    state = copy_of(checkpoint, world.rank, kept);
  }
  state.tensors.insert_or_assign("rng", mine.tensors.at("rng"));
  state.scheme_anew = true;
  state.metadata["position"] = "0";
  std::erase_if(state.metadata, [](const auto& entry) { return entry.first.starts_with("grids."); });
  return state;
}

}  // namespace starling
