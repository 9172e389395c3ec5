// Python's options as C++ has them.
#include "python/options.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/kernels/wire.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"

namespace starling {
namespace {

// Adds the value of a number; false if it is none.
bool add_number(std::vector<double>& values, py::handle value) {
  values.push_back(PyFloat_AsDouble(value.ptr()));
  const bool wrong = values.back() == -1 && PyErr_Occurred() != nullptr;
  if (wrong) PyErr_Clear();
  return !wrong;
}

// Adds the value of an option, or its values if there are `several`.
void add_numbers(std::vector<double>& values, const py::str& key, std::size_t several,
                 const py::object& value) {
  const bool is_list = py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value);
  const std::size_t before = values.size();
  bool right = is_list == (several > 0);
  if (right && is_list) {
    for (const py::handle each : value) right = add_number(values, each) && right;
    right = right && values.size() - before == several;
  } else if (right) {
    right = add_number(values, value);
  }
  if (!right)
    throw py::type_error(fmt::format("{} = {} is not allowed: {}", key.cast<std::string>(),
                                     py::repr(value).cast<std::string>(),
                                     several > 0 ? fmt::format("{} numbers", several) : "a number"));
}

// The number of the choice. None is the first one, as in torch.
double chosen(const Rule& rule, const py::str& key, std::span<const std::string_view> choices,
              const py::object& value) {
  if (value.is_none()) return 0;
  const auto found =
      py::isinstance<py::str>(value) ? std::ranges::find(choices, value.cast<std::string>()) : choices.end();
  if (found != choices.end()) return static_cast<double>(found - choices.begin());
  const std::string near = py::isinstance<py::str>(value)
                               ? did_you_mean(value.cast<std::string>(), {choices.begin(), choices.end()})
                               : "";
  throw UsageError(fmt::format("{}: {} = {} is not allowed{}: {} or None", rule_name(rule),
                               key.cast<std::string>(), py::repr(value).cast<std::string>(), near,
                               fmt::join(choices, ", ")));
}

Rule rule_named(const std::string& name) {
  for (const Rule& rule : known_rules()) {
    if (rule_name(rule) == name) return rule;
  }
  throw UsageError(fmt::format("rule \"{}\" is unknown", name));
}

// Converts to the option's type.
SchemeValue scheme_value(const SchemeOption& option, py::handle value) {
  const std::optional<SchemeValue> standard = default_of(option);
  if (!standard || std::holds_alternative<double>(*standard)) return value.cast<double>();
  if (std::holds_alternative<std::int64_t>(*standard)) return value.cast<std::int64_t>();
  return value.cast<std::string>();
}

}  // namespace

PythonRule::PythonRule(const std::string& name) : defaults_(rule_named(name)) {
  each_option(defaults_, [&](const RuleOption& option, const auto& value) {
    const std::string key(option.name);
    std::size_t several = 0;
    if constexpr (requires { value.size(); }) several = value.size();
    keys_.push_back(
        {py::reinterpret_steal<py::str>(PyUnicode_InternFromString(key.c_str())), option.choices, several});
  });
}

void PythonRule::set(Rule& rule, const py::dict& group) const {
  std::vector<double> values;
  for (const auto& [key, choices, several] : keys_) {
    const py::object value = group[key];
    if (choices.empty())
      add_numbers(values, key, several, value);
    else
      values.push_back(chosen(rule, key, choices, value));
  }
  set_rule_values(rule, values);
}

py::dict rules() {
  py::dict all;
  for (const Rule& rule : known_rules()) {
    py::dict options, states;
    each_option(rule, [&](const RuleOption& option, const auto& value) {
      if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(value)>>)
        options[py::str(std::string(option.name))] =
            std::string(option.choices[static_cast<std::size_t>(value)]);
      else
        options[py::str(std::string(option.name))] = py::cast(value);
    });
    for (const RuleStateName& state : rule_state_names(rule))
      states[py::str(std::string(state.name))] = std::string(state.torch);
    py::dict one;
    one["options"] = options;
    one["states"] = states;
    all[py::str(rule_name(rule))] = one;
  }
  return all;
}

std::chrono::milliseconds milliseconds_of(std::string_view name, double seconds) {
  if (!ranges::max_wait.holds(seconds))
    throw UsageError(
        fmt::format("{} = {} is not allowed: it must be {} s", name, seconds, ranges::max_wait.text()));
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

Options options_of(const py::dict& given) {
  using Set = void (*)(Options&, py::handle);
  static const std::map<std::string, Set> setters{
      {"topology", [](Options& o, py::handle v) { o.topology = v.cast<std::string>(); }},
      {"scheme", [](Options& o, py::handle v) { o.scheme.name = v.cast<std::string>(); }},
      {"wire", [](Options& o, py::handle v) { o.wire = wire_named(v.cast<std::string>()); }},
      {"one_in", [](Options& o, py::handle v) { o.one_in = v.cast<int>(); }},
      {"every", [](Options& o, py::handle v) { o.every = v.cast<int>(); }},
      {"outer", [](Options& o, py::handle v) { o.outer = v.cast<std::string>(); }},
      {"outer_lr", [](Options& o, py::handle v) { o.outer_lr = v.cast<double>(); }},
      {"outer_momentum", [](Options& o, py::handle v) { o.outer_momentum = v.cast<double>(); }},
      {"outer_warmup", [](Options& o, py::handle v) { o.outer_warmup = v.cast<int>(); }},
      {"outer_lr_at", [](Options& o, py::handle v) { o.outer_lr_at = v.cast<std::string>(); }},
      {"outer_momentum_at", [](Options& o, py::handle v) { o.outer_momentum_at = v.cast<std::string>(); }},
      {"mean_every", [](Options& o, py::handle v) { o.mean_every = v.cast<int>(); }},
      {"seed", [](Options& o, py::handle v) { o.seed = v.cast<std::uint64_t>(); }},
      {"hierarchy", [](Options& o, py::handle v) { o.hierarchy = v.cast<std::string>(); }},
      {"workers_per_node", [](Options& o, py::handle v) { o.workers_per_node = v.cast<int>(); }},
      {"block_bytes", [](Options& o, py::handle v) { o.block_bytes = v.cast<std::int64_t>(); }},
      {"max_wait",
       [](Options& o, py::handle v) {
         if (!v.is_none()) o.max_wait = milliseconds_of("max_wait", v.cast<double>());
       }},
      {"jump_guard", [](Options& o, py::handle v) { o.jump_guard = v.cast<double>(); }},
      {"clip", [](Options& o, py::handle v) { o.clip = v.cast<double>(); }},
      {"skip_not_finite", [](Options& o, py::handle v) { o.skip_not_finite = v.cast<bool>(); }},
      {"clear_gradients", [](Options& o, py::handle v) { o.clear_gradients = v.cast<bool>(); }}};
  const std::vector<SharedOption> of_schemes = scheme_options();
  Options options;
  for (const auto& [name, value] : given) {
    const auto key = name.cast<std::string>();
    const auto setter = setters.find(key);
    const auto of_scheme = std::ranges::find(of_schemes, key, [](const auto& o) { return o.option->name; });
    if (setter == setters.end() && of_scheme == of_schemes.end()) {
      std::vector<std::string> known{"buffers", "check_gradients", "model", "process_group", "world"};
      for (const auto& [other, set] : setters) known.push_back(other);
      for (const SharedOption& other : of_schemes) known.emplace_back(other.option->name);
      std::ranges::sort(known);
      throw py::type_error(fmt::format("unexpected keyword argument '{}'{}: beside the rule's there are {}",
                                       key, did_you_mean(key, known), fmt::join(known, ", ")));
    }
    try {
      if (of_scheme == of_schemes.end()) {
        setter->second(options, value);
      } else if (!(value.is_none() && of_scheme->option->is_automatic())) {
        options.scheme.options.emplace_back(key, scheme_value(*of_scheme->option, value));
      }
    } catch (const py::cast_error&) {
      throw py::type_error(fmt::format("keyword argument '{}': {} has the wrong type", key,
                                       py::repr(value).cast<std::string>()));
    }
  }
  return options;
}

py::dict scheme_traits(const std::string& name) {
  const SchemeTraits& traits = scheme_info(name).traits;
  py::dict all;
  all["averages_gradients"] = traits.path == Path::gradients;
  all["sums_gradients"] = traits.sums_gradients;
  return all;
}

}  // namespace starling
