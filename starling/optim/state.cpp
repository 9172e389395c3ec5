// An optimizer's state as a file, and back (the names in it: optimizer.h).
#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/optim/agreement.h"
#include "starling/optim/engine.h"
#include "starling/optim/rule_step.h"

namespace starling {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

constexpr const char* kFormat = "starling optimizer 1";
constexpr std::array<const char*, 3> kStates{"m.", "v.", "b."};  // kernels::RuleState
constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {
    {at::kFloat, "F32"}, {at::kDouble, "F64"}, {at::kHalf, "F16"},  {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},  {at::kInt, "I32"},    {at::kShort, "I16"}, {at::kChar, "I8"},
    {at::kByte, "U8"},   {at::kBool, "BOOL"}};

TensorInfo info_of(const std::string& name, const at::Tensor& tensor) {
  for (const auto& [type, dtype] : kDtypes) {
    if (type == tensor.scalar_type()) return {.name = name, .dtype = dtype, .shape = tensor.sizes().vec()};
  }
  throw UsageError(
      fmt::format("tensor \"{}\" is {}: that cannot be saved", name, c10::toString(tensor.scalar_type())));
}

std::string text_of(const TensorInfo& tensor) {
  return fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.shape, ", "));
}

at::Tensor vector_of(std::int64_t length, at::ScalarType type) { return at::empty({length}, type); }

// The module's tensors, and as GROUP.INDEX the groups' parameters that it lacks (all, without a module).
Named model_of(const Named& module, const Groups& groups,
               std::unordered_map<const void*, std::string>& names) {
  Named model = module;
  for (const auto& [name, tensor] : module) names[tensor.unsafeGetTensorImpl()] = name;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t p = 0; p < groups[g].params().size(); ++p) {
      const at::Tensor& parameter = groups[g].params()[p];
      const auto [at, fresh] = names.try_emplace(parameter.unsafeGetTensorImpl(), fmt::format("{}.{}", g, p));
      if (fresh) model.emplace_back(at->second, parameter);
    }
  }
  return model;
}

// f(segment, its stretch of state k, where that lies in the parameter's own memory order)
template <class F>
void each_state(std::vector<Block>& blocks, std::size_t k, const F& f) {
  for (Block& block : blocks) {
    for (const Segment& s : block.segments) f(s, block.states[k].data() + s.offset);
  }
}

// All that a file holds. Loading fills these tensors, then apply() puts into place what is only a copy here.
struct State {
  Named model;
  std::array<Named, kStates.size()> rule;  // per parameter, with its strides
  at::Tensor steps, rng;
  std::vector<at::Tensor> options;  // per group

  State(std::vector<Block>& blocks, const Named& module, Groups& groups) {
    std::unordered_map<const void*, std::string> names;
    model = model_of(module, groups, names);
    std::vector<const void*> parameters;
    for (auto& group : groups) {
      const std::vector<double> values = rule_values(rule_of(group));
      options.push_back(vector_of(static_cast<std::int64_t>(values.size()), at::kDouble));
      std::copy(values.begin(), values.end(), options.back().mutable_data_ptr<double>());
      for (const at::Tensor& parameter : group.params()) {
        index[parameter.unsafeGetTensorImpl()] = parameters.size();
        parameters.push_back(parameter.unsafeGetTensorImpl());
        for (std::size_t k = 0; k < blocks.front().states.size(); ++k) {
          rule[k].emplace_back(names.at(parameters.back()), at::empty_like(parameter));
        }
      }
    }
    steps = vector_of(static_cast<std::int64_t>(parameters.size()), at::kLong).zero_();
    for (std::size_t k = 0; k < blocks.front().states.size(); ++k) {
      each_state(blocks, k,
                 [&](const Segment& s, const float* part) { std::copy_n(part, s.length, place(k, s)); });
    }
    for (const Block& block : blocks) {
      for (const Segment& s : block.segments) step_count(s) = s.steps;
    }
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    rng = generator.get_state();
  }

  void apply(std::vector<Block>& blocks, Groups& groups) {
    for (std::size_t g = 0; g < groups.size(); ++g) set_rule_values(rule_of(groups[g]), values(g));
    for (std::size_t k = 0; k < blocks.front().states.size(); ++k) {
      each_state(blocks, k, [&](const Segment& s, float* part) { std::copy_n(place(k, s), s.length, part); });
    }
    for (Block& block : blocks) {
      for (Segment& s : block.segments) s.steps = step_count(s);
    }
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(rng);
  }

  Named all() const {
    Named all;
    for (const auto& [name, tensor] : model) all.emplace_back("model." + name, tensor);
    for (std::size_t k = 0; k < rule.size(); ++k) {
      for (const auto& [name, tensor] : rule[k]) all.emplace_back(kStates[k] + name, tensor);
    }
    for (std::size_t g = 0; g < options.size(); ++g)
      all.emplace_back(fmt::format("options.{}", g), options[g]);
    all.emplace_back("steps", steps);
    all.emplace_back("rng", rng);
    return all;
  }
  std::vector<double> values(std::size_t group) const {
    const auto* first = options[group].const_data_ptr<double>();
    return {first, first + options[group].numel()};
  }

 private:
  float* place(std::size_t k, const Segment& s) {
    return rule[k][index.at(s.parameter.unsafeGetTensorImpl())].second.mutable_data_ptr<float>() + s.begin;
  }
  std::int64_t& step_count(const Segment& s) {
    return steps.mutable_data_ptr<std::int64_t>()[index.at(s.parameter.unsafeGetTensorImpl())];
  }
  std::unordered_map<const void*, std::size_t> index;  // of a parameter
};

std::string_view metadata_of(const SafetensorsReader& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? std::string_view() : found->second;
}

std::int64_t position_in(const SafetensorsReader& file) {
  const std::string_view text = metadata_of(file, "position");
  std::int64_t position = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), position);
  if (error != std::errc() || stop != text.data() + text.size() || position < 0) {
    refuse(file.path(), 8, fmt::format("position \"{}\" is not a number from 0", text));
  }
  return position;
}

// The file's tensors in the order of `wanted`, which it must hold exactly.
std::vector<at::Tensor> read_all(const SafetensorsReader& file, const std::string& rule,
                                 const Named& wanted) {
  if (metadata_of(file, "format") != kFormat) {
    refuse(file.path(), 8,
           fmt::format("its format is \"{}\", not \"{}\"", metadata_of(file, "format"), kFormat));
  }
  if (metadata_of(file, "rule") != rule) {
    refuse(file.path(), 8,
           fmt::format("its rule is {}, this optimizer's is {}", metadata_of(file, "rule"), rule));
  }
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : wanted) {
    const TensorInfo mine = info_of(name, tensor);
    const TensorInfo* const there = file.find(name);
    if (there == nullptr) refuse(file.path(), 8, fmt::format("there is no tensor \"{}\"", name));
    if (there->dtype != mine.dtype || there->shape != mine.shape) {
      refuse(
          file.path(), file.offset(*there),
          fmt::format("tensor \"{}\" is {}, this optimizer's is {}", name, text_of(*there), text_of(mine)));
    }
    at::Tensor& read = tensors.emplace_back(at::empty(tensor.sizes(), tensor.scalar_type()));
    file.read(*there, {static_cast<std::byte*>(read.mutable_data_ptr()), read.nbytes()});
  }
  if (file.tensors().size() == wanted.size()) return tensors;
  for (const TensorInfo& there : file.tensors()) {
    if (std::none_of(wanted.begin(), wanted.end(),
                     [&](const auto& mine) { return mine.first == there.name; })) {
      refuse(file.path(), file.offset(there),
             fmt::format("tensor \"{}\" is not one of this optimizer", there.name));
    }
  }
  return tensors;
}

// What apply() cannot refuse any more.
void check(const SafetensorsReader& file, const State& loaded, Groups& groups) {
  const auto offset = [&](const std::string& name) { return file.offset(*file.find(name)); };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::string name = fmt::format("options.{}", g);
    Rule rule = rule_of(groups[g]);
    try {
      set_rule_values(rule, loaded.values(g));
    } catch (const UsageError& error) {
      refuse(file.path(), offset(name), fmt::format("tensor \"{}\": {}", name, error.what()));
    }
  }
  const auto* const steps = loaded.steps.const_data_ptr<std::int64_t>();
  if (std::any_of(steps, steps + loaded.steps.numel(), [](std::int64_t count) { return count < 0; })) {
    refuse(file.path(), offset("steps"), "tensor \"steps\": a count is negative");
  }
  try {
    at::make_generator<at::CPUGeneratorImpl>().set_state(loaded.rng);
  } catch (const c10::Error&) {
    refuse(file.path(), offset("rng"), "tensor \"rng\" is not a state of torch's random numbers");
  }
}

void refuse_around(const torch::optim::Optimizer* inner) {
  if (inner == nullptr) return;
  throw UsageError(
      "an optimizer around another one is not saved or loaded: Starling does not know the other one's state");
}

}  // namespace

Digest Optimizer::save(const std::string& file) const {
  const c10::AutoGradMode no_gradient(false);
  refuse_around(engine_->inner);
  // State reads the groups' rules through rule_of(), which hands out references that could be written to.
  auto& groups = const_cast<Optimizer*>(this)->param_groups();
  const Named all = State(engine_->blocks, engine_->model, groups).all();
  std::vector<TensorInfo> infos;
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : all) {
    infos.push_back(info_of(name, tensor));
    by_name[name] = tensor;
  }
  // Of the first round that starts from the parameters as they stand: one in flight is sent again.
  const std::uint64_t position = engine_->exchange->position(engine_->scheme->sends_ahead());
  SafetensorsWriter writer(file, infos,
                           {{"format", kFormat},
                            {"rule", rule_name(rule_of(groups.front()))},
                            {"position", std::to_string(position)}});
  for (const TensorInfo& info : writer.tensors()) {
    const at::Tensor dense = by_name.at(info.name).contiguous();
    writer.write({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
  }
  return writer.finish();
}

void Optimizer::load(const std::string& file) {
  const c10::AutoGradMode no_gradient(false);
  refuse_around(engine_->inner);
  State state(engine_->blocks, engine_->model, param_groups_);
  const Named all = state.all();
  std::vector<at::Tensor> loaded;
  std::int64_t position = 0;
  together(*this, "load its file", [&] {
    const SafetensorsReader reader(file);
    loaded = read_all(reader, rule_name(rule_of(param_groups_.front())), all);
    position = position_in(reader);
    // Those of the model are the module's own: they wait until all workers have read theirs.
    for (std::size_t i = state.model.size(); i < all.size(); ++i) all[i].second.copy_(loaded[i]);
    check(reader, state, param_groups_);
  });
  for (std::size_t i = 0; i < state.model.size(); ++i) all[i].second.copy_(loaded[i]);
  state.apply(engine_->blocks, param_groups_);
  engine_->exchange->restart(static_cast<std::uint64_t>(position));
  engine_->scheme->begin();
}

void Optimizer::save(torch::serialize::OutputArchive&) const {
  throw UsageError("starling::Optimizer is not saved to torch's archives: use save(file)");
}

void Optimizer::load(torch::serialize::InputArchive&) {
  throw UsageError("starling::Optimizer is not loaded from torch's archives: use load(file)");
}

}  // namespace starling
