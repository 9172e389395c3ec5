// An optimizer's state as a file, and back (the names in it: optimizer.h).
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <mutex>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/optim/agreement.h"
#include "starling/optim/engine.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/torch_state.h"

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

// All that a file holds. Loading fills these tensors, then apply() puts into place what is only a copy here.
struct State {
  std::string rule;  // its name
  Named model;
  std::vector<at::Tensor> options;  // per group
  at::Tensor steps, rng;

  // `inner`: the optimizer that was not written here, or null.
  State(std::vector<Block>& blocks, const Named& module, Groups& groups, torch::optim::Optimizer* inner)
      : blocks_(blocks), groups_(groups) {
    if (inner != nullptr) inner_ = TorchState::of(*inner);
    rule = inner_ ? inner_->name() : rule_name(rule_of(groups.front()));
    const auto names = name_model(module);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::vector<double> values = inner_ ? inner_->values(g) : rule_values(rule_of(groups[g]));
      options.push_back(vector_of(static_cast<std::int64_t>(values.size()), at::kDouble));
      std::copy(values.begin(), values.end(), options.back().mutable_data_ptr<double>());
      for (const at::Tensor& parameter : groups[g].params()) {
        const void* const key = parameter.unsafeGetTensorImpl();
        index_[key] = parameters_.size();
        parameters_.push_back({parameter, names.at(key), static_cast<int>(g)});
      }
    }
    steps = vector_of(static_cast<std::int64_t>(parameters_.size()), at::kLong).zero_();
    inner_ ? gather_inner() : gather_blocks();
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    rng = generator.get_state();
  }

  // An optimizer that was not written here has some of its state only after a parameter's first step: this makes it
  // that of which the file has any.
  void make_as_in(const SafetensorsReader& file) {
    if (!inner_) return;
    for (Parameter& p : parameters_) {
      for (std::size_t k = 0; k < fields_.size(); ++k) {
        p.state[k] = file.find(fields_[k] + p.name) != nullptr ? at::empty_like(p.tensor) : at::Tensor();
      }
    }
  }

  Named all() const {
    Named all;
    for (const auto& [name, tensor] : model) all.emplace_back("model." + name, tensor);
    for (std::size_t k = 0; k < fields_.size(); ++k) {
      for (const Parameter& p : parameters_) {
        if (p.state[k].defined()) all.emplace_back(fields_[k] + p.name, p.state[k]);
      }
    }
    for (std::size_t g = 0; g < options.size(); ++g)
      all.emplace_back(fmt::format("options.{}", g), options[g]);
    all.emplace_back("steps", steps);
    all.emplace_back("rng", rng);
    return all;
  }

  // Of what was read: what apply() cannot refuse any more.
  void check(const SafetensorsReader& file) const {
    const auto offset = [&](const std::string& name) { return file.offset(*file.find(name)); };
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      try {
        if (inner_) {
          inner_->check_values(values(g));
        } else {
          Rule copy = rule_of(groups_[g]);
          set_rule_values(copy, values(g));
        }
      } catch (const UsageError& error) {
        const std::string name = fmt::format("options.{}", g);
        refuse(file.path(), offset(name), fmt::format("tensor \"{}\": {}", name, error.what()));
      }
    }
    for (const Parameter& p : parameters_) {
      if (!inner_) break;
      const std::string field = inner_->lacks({0, p.state}, values(static_cast<std::size_t>(p.group)));
      if (!field.empty()) refuse(file.path(), 8, fmt::format("there is no tensor \"{}.{}\"", field, p.name));
    }
    const auto* const counts = steps.const_data_ptr<std::int64_t>();
    if (std::any_of(counts, counts + steps.numel(), [](std::int64_t count) { return count < 0; })) {
      refuse(file.path(), offset("steps"), "tensor \"steps\": a count is negative");
    }
    try {
      at::make_generator<at::CPUGeneratorImpl>().set_state(rng);
    } catch (const c10::Error&) {
      refuse(file.path(), offset("rng"), "tensor \"rng\" is not a state of torch's random numbers");
    }
  }

  void apply() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      inner_ ? inner_->set_values(g, values(g)) : set_rule_values(rule_of(groups_[g]), values(g));
    }
    inner_ ? spread_inner() : spread_blocks();
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(rng);
  }

 private:
  struct Parameter {
    at::Tensor tensor;
    std::string name;
    int group;
    std::vector<at::Tensor> state{};  // by field, with the parameter's strides
  };

  // The module's tensors, and as GROUP.INDEX the groups' parameters that it lacks (all, without a module).
  std::unordered_map<const void*, std::string> name_model(const Named& module) {
    std::unordered_map<const void*, std::string> names;
    model = module;
    for (const auto& [name, tensor] : module) names[tensor.unsafeGetTensorImpl()] = name;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::size_t p = 0; p < groups_[g].params().size(); ++p) {
        const at::Tensor& parameter = groups_[g].params()[p];
        const auto [at, fresh] =
            names.try_emplace(parameter.unsafeGetTensorImpl(), fmt::format("{}.{}", g, p));
        if (fresh) model.emplace_back(at->second, parameter);
      }
    }
    return names;
  }

  void gather_blocks() {
    const std::size_t states = blocks_.front().states.size();
    fields_.assign(kStates.begin(), kStates.begin() + states);
    fields_.push_back("master.");
    const Masters masters = with_masters(blocks_);
    for (Parameter& p : parameters_) {
      for (std::size_t k = 0; k < states; ++k) p.state.push_back(at::zeros_like(p.tensor, at::kFloat));
      const auto found = masters.find(p.tensor.unsafeGetTensorImpl());
      const bool narrow =
          p.tensor.scalar_type() != at::kFloat;  // one without segments is of a group just added
      p.state.push_back(found != masters.end() ? joined_masters(found->second)
                        : narrow               ? p.tensor.to(at::kFloat)
                                               : at::Tensor());
    }
    for (const Block& block : blocks_) {
      for (const Segment& s : block.segments) {
        step_count(s) = s.steps;
        for (std::size_t k = 0; k < block.states.size(); ++k)
          std::copy_n(block.states[k].data() + s.offset, s.length, place(k, s));
      }
    }
  }
  void spread_blocks() {
    for (Block& block : blocks_) {
      for (Segment& s : block.segments) {
        s.steps = step_count(s);
        for (std::size_t k = 0; k < block.states.size(); ++k)
          std::copy_n(place(k, s), s.length, block.states[k].data() + s.offset);
        if (s.master.defined())
          std::copy_n(place(block.states.size(), s), s.length, s.master.mutable_data_ptr<float>());
      }
    }
  }

  void gather_inner() {
    for (const std::string& field : inner_->fields()) fields_.push_back(field + ".");
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& p = parameters_[i];
      TorchState::Fields state = inner_->get(p.tensor, p.name);
      steps.mutable_data_ptr<std::int64_t>()[i] = state.steps;
      p.state = std::move(state.tensors);
    }
  }
  void spread_inner() {
    const auto* const counts = steps.const_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      inner_->set(parameters_[i].tensor, {counts[i], parameters_[i].state});
  }

  // Where state k of this segment lies in the parameter's own memory order.
  float* place(std::size_t k, const Segment& s) {
    return parameters_[index(s)].state[k].mutable_data_ptr<float>() + s.begin;
  }
  std::int64_t& step_count(const Segment& s) { return steps.mutable_data_ptr<std::int64_t>()[index(s)]; }
  std::size_t index(const Segment& s) const { return index_.at(s.parameter.unsafeGetTensorImpl()); }
  std::vector<double> values(std::size_t group) const {
    const auto* first = options[group].const_data_ptr<double>();
    return {first, first + options[group].numel()};
  }

  std::vector<Block>& blocks_;
  Groups& groups_;
  std::unique_ptr<TorchState> inner_;
  std::vector<Parameter> parameters_;                   // in the groups' order
  std::unordered_map<const void*, std::size_t> index_;  // of a parameter in it
  std::vector<std::string> fields_;                     // of a parameter's state, each with a point: "m."
};

std::string_view metadata_of(const SafetensorsReader& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? std::string_view() : found->second;
}

// The blocks' grids as text: Grid::state() of each.
std::string grids_text(const std::vector<Block>& blocks) {
  std::vector<int> exponents;
  for (const Block& block : blocks) {
    for (const int exponent : block.grid.state()) exponents.push_back(exponent);
  }
  return fmt::format("{}", fmt::join(exponents, " "));
}

std::string grids_key(Wire wire) { return fmt::format("grids.{}", name_of(wire)); }

// Empty where the file has none of this wire.
std::vector<int> grids_in(const SafetensorsReader& file, Wire wire) {
  const std::string_view text = is_modular(wire) ? metadata_of(file, grids_key(wire)) : "";
  std::vector<int> exponents;
  const char* at = text.data();
  for (const char* const end = at + text.size(); at != end;) {
    int& exponent = exponents.emplace_back();
    const auto [stop, error] = std::from_chars(at, end, exponent);
    if (error != std::errc() || !Grid::allows(exponent) || (stop != end && *stop != ' ')) {
      refuse(file.path(), 8,
             fmt::format("{} \"{}\" are not numbers from {} to {}", grids_key(wire), text, Grid::kFinest,
                         Grid::kCoarsest));
    }
    at = stop == end ? stop : stop + 1;
  }
  return exponents;
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

void check_saved(const Options& options) {
  if (options.hierarchy == "node") {
    throw UsageError(
        "hierarchy \"node\" can be neither saved nor loaded yet: each of a node's workers has a share of the "
        "state");
  }
}

}  // namespace

Digest Optimizer::save(const std::string& file) const {
  check_saved(engine_->options);
  const c10::AutoGradMode no_gradient(false);
  // State reads the groups' options through references that could be written to.
  auto& groups =
      engine_->inner ? engine_->inner->param_groups() : const_cast<Optimizer*>(this)->param_groups_;
  const State state(engine_->blocks, engine_->model, groups, engine_->inner);
  const Named all = state.all();
  std::vector<TensorInfo> infos;
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : all) {
    infos.push_back(info_of(name, tensor));
    by_name[name] = tensor;
  }
  // Of the first round that starts from the parameters as they stand: one in flight is sent again.
  const std::uint64_t position = engine_->exchange->position(engine_->scheme->sends_ahead());
  std::map<std::string, std::string> metadata{
      {"format", kFormat}, {"rule", state.rule}, {"position", std::to_string(position)}};
  const Wire wire = engine_->options.wire;
  if (is_modular(wire)) metadata[grids_key(wire)] = grids_text(engine_->blocks);
  SafetensorsWriter writer(file, infos, metadata);
  for (const TensorInfo& info : writer.tensors()) {
    const at::Tensor dense = by_name.at(info.name).contiguous();
    writer.write({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
  }
  return writer.finish();
}

void Optimizer::load(const std::string& file) {
  check_saved(engine_->options);
  const c10::AutoGradMode no_gradient(false);
  auto& groups = engine_->inner ? engine_->inner->param_groups() : param_groups_;
  State state(engine_->blocks, engine_->model, groups, engine_->inner);
  const std::size_t models = state.model.size();
  std::vector<at::Tensor> loaded;
  std::int64_t position = 0;
  std::vector<int> grids;
  together(*this, "load its file", [&] {
    const SafetensorsReader reader(file);
    state.make_as_in(reader);
    const Named all = state.all();
    loaded = read_all(reader, state.rule, all);
    position = position_in(reader);
    grids = grids_in(reader, engine_->options.wire);
    // Those of the model are the module's own: they wait until all workers have read theirs.
    for (std::size_t i = models; i < all.size(); ++i) all[i].second.copy_(loaded[i]);
    state.check(reader);
  });
  for (std::size_t i = 0; i < models; ++i) state.model[i].second.copy_(loaded[i]);
  state.apply();
  engine_->set_grids(grids);
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
